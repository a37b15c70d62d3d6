"""What a report calls results and figures, in the order in which figures stand on its page."""

#: what results mean, and how they are headed
MEANINGS = {
    "elbo": (
        "ELBO",
        "lower bound of the log evidence of the training rows, nats; of an exact GP the evidence itself",
    ),
    "elbo_se": ("its standard error", "over draws, nats"),
    "iw_bound": ("importance-weighted bound", "tighter, of the FITC model, nats"),
    "iw_bound_se": ("its standard error", "nats"),
    "loo": ("LOO", "log density of each training row given the others, in total, nats"),
    "loo_se": ("its standard error", "nats"),
    "khat": ("k-hat", "shape of the tail of the weights p/q; above 0.7 q is not to be trusted"),
    "test_log_density": ("test log density", "mean per held-out row, nats, in the table's units"),
    "test_rmse": ("test RMSE", "in the table's units"),
    "coverage95": ("coverage", "share of what was held out inside the 95 % band"),
    "test_accuracy": ("accuracy", "share of held-out labels that were likeliest"),
    "test_calibration_error": ("calibration error", "mean distance of probability and frequency"),
    "loss": ("loss", "mean of the last tenth of the steps, nats"),
    "missing": ("missing entries", "of the targets of the training rows"),
    "noise": ("noise", "variance, standardised"),
    "relevance": ("relevance", "of each latent dimension: how much the targets vary along it"),
    "process_noise": ("process noise", "variance of each state, in the states' own units"),
    "observation_noise": ("observation noise", "variance of each target, in the table's units"),
}
#: results that say how training went
EFFORT = {
    "converged": "converged",
    "gap": "nats yet to gain",
    "steps": "steps",
    "rejected_steps": "rejected steps",
    "seconds": "seconds",
    "steps_per_second": "steps a second",
    "parameters": "parameters trained",
    "jitter": "largest jitter on a diagonal",
    "input_seconds": "seconds of waiting for rows",
}
#: what figures show, in the order of the page
CAPTIONS = {
    "fit": "Mean and 95 % interval of the target, with the rows that were trained on.",
    "forecast": "The series and the fan of its forecast.",
    "states": "The states in time.",
    "predicted": "Predicted beside observed values, of held-out rows where there are any.",
    "confusion": "Which labels were taken for which.",
    "calibration": "Whether probabilities are to be believed: a calibrated fit lies on the diagonal, within the band.",
    "latents": "Rows in their two latent dimensions of largest relevance.",
    "relevance": "Which latent dimensions are in use.",
    "ranking": "Features by 1 / lengthscale: the first function varies more along those on top.",
    "importance": "Features by how much the average of f goes up and down along each.",
    "dependence": "Partial dependence: the average of f over rows as one feature is moved, and single rows.",
    "prior": "What the model says before it has seen data, at the fitted hyperparameters, and after.",
    "terms": "The term of each feature, in the table's units.",
    "layers": "Each layer's map with its inducing points.",
    "layer-draws": "Draws that go through the layers along a line of inputs.",
    "losses": "The loss at every step, faint, and its running median.",
    "convergence": "Where steps without end would lead, beside the ends of the parts of training.",
    "hyperparameters": "Hyperparameters in their constrained units.",
}
#: figures that stand in a section of their own subject
OF_LAYERS, OF_TRAINING = ("layers", "layer-draws", "terms"), ("losses", "convergence")

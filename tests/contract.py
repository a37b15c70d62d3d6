"""scikit-learn's contract of estimators, whole or its fast part."""

import jaxtyping
import pytest
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

# cheap, and every one of them has caught an estimator of this kind before
FAST_CHECKS = {
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimators_unfitted",
    "check_estimators_nan_inf",
    "check_regressors_no_decision_function",
    "check_classifiers_one_label",
    "check_classifiers_regression_target",
    "check_get_params_invariance",
    "check_set_params",
    "check_n_features_in_after_fitting",
    "check_fit1d",
    "check_all_zero_sample_weights_error",
    "check_sample_weights_not_overwritten",
}
#: what cannot hold, and why
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "rows that are repeated make other k-means centres to start from",
}


def keeps_fast_part(tiny) -> None:
    """Raise for the first of the fast checks that an estimator does not pass."""
    checks = [
        (estimator, check)
        for estimator, check in estimator_checks_generator(tiny)
        if getattr(check, "func", check).__name__ in FAST_CHECKS
    ]
    assert len(checks) >= 8
    for estimator, check in checks:
        check(estimator)


def keeps_all(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise for the first of all checks that an estimator does not pass."""
    # it hands -1 and the like to __init__, which is to keep them: only fit may complain
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    check_estimator(tiny, expected_failed_checks=EXPECTED)

"""What a fit is worth: ArviZ export, Pareto k-hat, comparison tables, plots."""

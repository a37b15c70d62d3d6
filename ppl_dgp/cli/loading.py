"""From a source to the rows that a model is trained on and tested on, in its units."""

from __future__ import annotations

from functools import partial

from ppl_dgp.cli import labelled, latent, own_rows, series, targets
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.names import OWN_SCALE
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.task import Task
from ppl_dgp.cli.uses import OWN_ROWS, SEVERAL_TARGETS
from ppl_dgp.data import Standardiser, load_table, split
from ppl_dgp.data.load import columns_vary
from ppl_dgp.data.table import standardise


def load_task(source: str, settings: Settings) -> Task:
    """The data of a fit; only the rows to train on decide the standardisation. Raises DataError or BadInput."""
    if settings.model == "gplvm":
        return latent.load_latent_task(source, settings)
    if settings.model == "gpssm":
        return series.load_series_task(source, settings)
    if settings.of_classes:
        return labelled.load_class_task(source, settings)
    read = settings.target, settings.drop_missing, settings.seed
    own = settings.model in OWN_ROWS
    table = load_table(
        source,
        *read,
        target_gaps=settings.model in SEVERAL_TARGETS,
        keep_constant=own,
        features=settings.features,
        ignore=settings.ignore,
    )
    if own:
        table = own_rows.arranged(table, settings)
        own_rows.check_rows(settings, table.feature_names, table.X)
        targets.check_support(settings, table.target_names, table.y, table.name)
    train_rows, test_rows = split(table, settings.split, settings.test_fraction, settings.seed)
    y = table.y[train_rows]
    for name, varies in zip(table.target_names, columns_vary(y), strict=True):
        if not varies:
            raise BadInput(
                f"target {name!r} of {table.name} is constant over the rows to train on",
                "choose another target, --split or --seed",
            )
    if own:
        columns = own_rows.units(settings, table.X[train_rows], y)
        of_rows = partial(own_rows.units_at, settings, *columns)
        return Task(table, train_rows, test_rows, *columns, of_rows=of_rows)
    x_units = Standardiser.fit(table.X[train_rows])
    if settings.likelihood in OWN_SCALE:
        targets.check_support(settings, table.target_names, table.y, table.name)
        return Task(table, train_rows, test_rows, x_units, targets.as_they_are(table.y.shape[1]))
    return Task(table, train_rows, test_rows, x_units, standardise(y))

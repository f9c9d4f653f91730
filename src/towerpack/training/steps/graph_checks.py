"""Checks of the graph of a training tower."""

from __future__ import annotations

from towerpack._core.errors import LayerError
from towerpack._core.logs import get_logger
from towerpack.tf1.summaries import lost_in
from towerpack.tower import COST, TowerTrace

_LOG = get_logger(__name__)
_STATEFUL_DRAWS = {
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}


def check_graph(trace: TowerTrace) -> None:
    """Warn about regularizers outside the cost, and random operations that cannot be resumed."""
    for text in trace.unused_regularizers():
        _LOG.warning("%s was computed but is not part of the cost. Add or remove it.", text)
    check_summaries(trace)
    definition = trace.result.outputs[COST].graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    draws = sorted({node.op for node in nodes if node.op in _STATEFUL_DRAWS})
    if draws:
        _LOG.warning(
            "The model draws random numbers by %s, whose state cannot be saved, so a continued run "
            "draws different ones. Use layers by name, Keras layers, or tf.random.stateless_* with "
            "get_current_tower_context().step_seed(name).",
            ", ".join(draws),
        )


def check_summaries(trace: TowerTrace) -> None:
    """Raise `LayerError` if the tower has `tf.summary` calls that no monitor receives."""
    lost = lost_in(trace.graph)
    if lost:
        raise LayerError(
            f"These tf.summary calls in the model have no writer: {', '.join(lost)}.",
            fix="use towerpack.nn.summary (scalar, histogram, image) outside of any tf.function or "
            "branch; or set a writer as default before train(): "
            "tf.summary.create_file_writer(…).set_as_default()",
        )

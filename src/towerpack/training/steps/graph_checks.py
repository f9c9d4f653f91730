"""Mistakes that show in the graph of a training tower."""

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
    """Warn of regularizers that are not part of the cost, and of draws that cannot be resumed."""
    for text in trace.unused_regularizers():
        _LOG.warning("%s was computed but is not part of the cost: add it, or take it out.", text)
    check_summaries(trace)
    definition = trace.result.outputs[COST].graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    draws = sorted({node.op for node in nodes if node.op in _STATEFUL_DRAWS})
    if draws:
        _LOG.warning(
            "The model draws random numbers by %s, whose state no checkpoint can hold: a run "
            "that is continued draws others. Use layers by name, Keras layers, or "
            "tf.random.stateless_* with get_current_tower_context().step_seed(name).",
            ", ".join(draws),
        )


def check_summaries(trace: TowerTrace) -> None:
    """Refuse summaries that nobody would receive, in a tower for training or evaluation."""
    lost = lost_in(trace.graph)
    if lost:
        raise LayerError(
            f"tf.summary in a tower reports nothing: {', '.join(lost)}.",
            expected="summaries for the monitors",
            fix="from towerpack.nn import summary; summary.scalar(name, value), .histogram and "
            ".image, not inside of a tf.function or a branch; or make a writer of your own the "
            "default before train(): tf.summary.create_file_writer(…).set_as_default()",
        )

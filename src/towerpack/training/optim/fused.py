"""Updates of Keras's own optimizers by one kernel of TensorFlow for each variable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from towerpack.training.distribution.replicas import update

_OPS = tf.raw_ops
TINY = 100_000
_DTYPES = ({tf.float32}, {tf.float64})


class Kernel(NamedTuple):
    """Kernel that computes the same formula as a Keras optimizer's `update_step`.

    `slots` maps arguments of `op` to the optimizer's slot variables, `numbers` maps arguments to
    constants. `powers` maps arguments to numbers that are raised to the step number.
    """

    op: Callable[..., Any]
    slots: dict[str, Sequence[Any]]
    numbers: dict[str, float]
    powers: dict[str, float]


def kernel_of(optimizer: Any) -> Kernel | None:
    """Return the kernel of a built optimizer, or None if TensorFlow has no kernel for it.

    TensorFlow adds the epsilon of Adagrad outside the square root, Keras inside. TensorFlow's
    RMSprop needs a slot for a momentum, which Keras creates only for a momentum above 0. XLA does
    not know TensorFlow's kernel for `amsgrad`.
    """
    kernel = _KERNELS.get(type(optimizer))
    return None if kernel is None else kernel(optimizer)


def _sgd(optimizer: Any) -> Kernel:
    if not optimizer.momentum:
        return Kernel(_descend, {}, {}, {})
    op = functools.partial(_OPS.ResourceApplyKerasMomentum, use_nesterov=optimizer.nesterov)
    return Kernel(op, {"accum": optimizer.momentums}, {"momentum": optimizer.momentum}, {})


def _descend(*, grad: tf.Tensor, lr: tf.Tensor, **arguments: Any) -> None:
    _OPS.ResourceApplyGradientDescent(delta=grad, alpha=lr, **arguments)


def _adam(optimizer: Any) -> Kernel | None:
    if optimizer.amsgrad or _is_tiny(optimizer):
        return None
    slots = {"m": optimizer._momentums, "v": optimizer._velocities}
    powers = {"beta1_power": optimizer.beta_1, "beta2_power": optimizer.beta_2}
    return Kernel(_OPS.ResourceApplyAdam, slots, _betas(optimizer), powers)


def _is_tiny(optimizer: Any) -> bool:
    """Return whether a CPU updates a few small variables.

    TensorFlow's kernel of Adam for CPUs always wakes other threads, which costs more than it saves.
    """
    variables = optimizer._trainable_variables
    sizes = [v.shape.num_elements() for v in (variable.value for variable in variables)]
    on_gpu = any("GPU" in variable.value.device for variable in variables)
    return len(sizes) < 16 and sum(sizes) < TINY and not on_gpu


def _adamax(optimizer: Any) -> Kernel:
    slots, powers = {"m": optimizer._m, "v": optimizer._u}, {"beta1_power": optimizer.beta_1}
    return Kernel(_OPS.ResourceApplyAdaMax, slots, _betas(optimizer), powers)


def _betas(optimizer: Any) -> dict[str, float]:
    return {"beta1": optimizer.beta_1, "beta2": optimizer.beta_2, "epsilon": optimizer.epsilon}


def _rmsprop(optimizer: Any) -> Kernel | None:
    if not optimizer.momentum > 0:
        return None
    op = _OPS.ResourceApplyRMSProp
    slots = {"ms": optimizer._velocities, "mom": optimizer._momentums}
    if optimizer.centered:
        op, slots["mg"] = _OPS.ResourceApplyCenteredRMSProp, optimizer._average_gradients
    return Kernel(op, slots, {n: getattr(optimizer, n) for n in ("rho", "momentum", "epsilon")}, {})


def _adadelta(optimizer: Any) -> Kernel:
    slots = {
        "accum": optimizer._accumulated_grads,
        "accum_update": optimizer._accumulated_delta_vars,
    }
    numbers = {"rho": optimizer.rho, "epsilon": optimizer.epsilon}
    return Kernel(_OPS.ResourceApplyAdadelta, slots, numbers, {})


def _ftrl(optimizer: Any) -> Kernel:
    def op(lr: tf.Tensor, l2: tf.Tensor, **arguments: Any) -> None:
        l2 = l2 + optimizer.beta / (2.0 * lr)
        _OPS.ResourceApplyFtrlV2(lr=lr, l2=l2, **arguments)

    numbers = {
        "l1": optimizer.l1_regularization_strength,
        "l2": optimizer.l2_regularization_strength,
        "l2_shrinkage": optimizer.l2_shrinkage_regularization_strength,
        "lr_power": optimizer.learning_rate_power,
    }
    slots = {"accum": optimizer._accumulators, "linear": optimizer._linears}
    return Kernel(op, slots, numbers, {})


_KERNELS: dict[type, Callable[[Any], Kernel | None]] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adam: _adam,
    keras.optimizers.AdamW: _adam,
    keras.optimizers.Adamax: _adamax,
    keras.optimizers.RMSprop: _rmsprop,
    keras.optimizers.Adadelta: _adadelta,
    keras.optimizers.Ftrl: _ftrl,
}


def update_variables(
    optimizer: Any, strategy: Any, grads_and_vars: Iterable[tuple[Any, Any]], rate: Any
) -> None:
    """Update variables by the optimizer's kernel, or by its `update_step` if no kernel fits.

    Updates are computed on the variables' devices, so that processes exchange only gradients.

    Args:
        optimizer: Keras optimizer.
        strategy: Strategy under which the optimizer was built.
        grads_and_vars: Pairs of a gradient and a variable, possibly distributed.
        rate: Learning rate.
    """
    kernel, pairs = kernel_of(optimizer), list(grads_and_vars)
    if kernel is None and not any("/job:ps/" in variable.device for _, variable in pairs):
        type(optimizer)._distributed_tf_update_step(optimizer, strategy, pairs, rate)
        return
    numbers: dict[tuple[str, tf.DType], dict[str, tf.Tensor]] = {}

    def step(variable: Any, gradient: Any, rate: Any) -> None:
        slots = {} if kernel is None else _slots_of(optimizer, kernel, variable)
        dtypes = {variable.dtype, *(slot.dtype for slot in slots.values())}
        if kernel is None or isinstance(gradient, tf.IndexedSlices) or dtypes not in _DTYPES:
            optimizer.update_step(gradient, variable, rate)
            return
        key = variable.device, variable.dtype
        if key not in numbers:
            numbers[key] = _numbers(optimizer, kernel, variable.dtype, rate)
        arguments = {name: slot.handle for name, slot in slots.items()} | numbers[key]
        gradient = tf.cast(gradient, variable.dtype)
        kernel.op(var=variable.handle, grad=gradient, use_locking=True, **arguments)

    for gradient, variable in pairs:
        with tf.device(variable.device):
            update(variable, step, gradient, rate)


def _slots_of(optimizer: Any, kernel: Kernel, variable: Any) -> dict[str, Any]:
    index = optimizer._get_variable_index(variable)
    return {name: slots[index].value for name, slots in kernel.slots.items()}


def _numbers(optimizer: Any, kernel: Kernel, dtype: tf.DType, rate: Any) -> dict[str, tf.Tensor]:
    step = tf.cast(optimizer.iterations + 1, dtype)
    powers = {name: tf.pow(tf.cast(base, dtype), step) for name, base in kernel.powers.items()}
    numbers = {name: tf.constant(number, dtype) for name, number in kernel.numbers.items()}
    return {"lr": tf.cast(rate, dtype), **powers, **numbers}

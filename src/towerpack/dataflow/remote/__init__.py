"""Flows over the network: one process sends datapoints, and another process receives them."""

from ._keys import generate_keys as generate_keys
from ._receive import ProducerCounts as ProducerCounts
from ._receive import RemoteDataZMQ as RemoteDataZMQ
from ._send import send_dataflow_zmq as send_dataflow_zmq

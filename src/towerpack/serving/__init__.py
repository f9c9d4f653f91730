"""HTTP server and client for exported models, with TensorFlow Serving's REST protocol."""

from towerpack._core.extras import explain_missing

with explain_missing("towerpack.serving"):
    from towerpack.serving._app import create_app as create_app
    from towerpack.serving._app import serve as serve
    from towerpack.serving._client import Client as Client
    from towerpack.serving.gate import Limits as Limits

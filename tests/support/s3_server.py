"""S3 server in this process, for tests of buckets."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from towerpack._core import remote_path


@contextmanager
def s3_server(*buckets: str) -> Generator[None]:
    """Run an S3 server with buckets. This process and its children use it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as env:
        env.setenv("AWS_ACCESS_KEY_ID", "test")
        env.setenv("AWS_SECRET_ACCESS_KEY", "test")
        env.setenv("AWS_DEFAULT_REGION", "us-east-1")
        env.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        try:
            import s3fs

            s3fs.S3FileSystem.clear_instance_cache()  # of an earlier server in this process
            remote_path._filesystem.cache_clear()
            files = s3fs.S3FileSystem(skip_instance_cache=True)
            for bucket in buckets:
                if files.exists(bucket):
                    files.rm(bucket, recursive=True)
                files.mkdir(bucket)
            yield
        finally:
            server.stop()

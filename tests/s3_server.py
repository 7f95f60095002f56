"""Serve moto's S3 on a free port of this machine, which is said on the standard error, as are all requests.

Moto's own program looks for the service of each request among all of AWS's, which takes a third of the time. A list has
250 keys and not a thousand, so that a test of several lists need not put so many.
"""

import os

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import run_simple

if __name__ == "__main__":
    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = "250"
    run_simple("127.0.0.1", 0, create_backend_app("s3"), threaded=True)

"""Serve moto's S3 on a free port of this machine, which is said on the standard error, as are all requests.

Moto's own program looks for the service of each request among all of AWS's, which takes a third of the time.
"""

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import run_simple

if __name__ == "__main__":
    run_simple("127.0.0.1", 0, create_backend_app("s3"), threaded=True)

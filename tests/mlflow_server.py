"""Serve MLflow on a free port of this machine, which is said on the standard error, as are all requests.

    python -m tests.mlflow_server FOLDER

It is the application of `mlflow server`, with its store in a database, in one process. MLflow's own program loads
MLflow twice, and passes each request through another framework.
"""

import os
import sys
from pathlib import Path

from werkzeug.serving import run_simple


def main(folder: Path) -> None:
    database, artifacts = f"sqlite:///{folder}/mlflow.db", "mlflow-artifacts:/"
    # What `mlflow server` passes on to its workers.
    os.environ.update(
        _MLFLOW_SERVER_FILE_STORE=database,
        _MLFLOW_SERVER_ARTIFACT_ROOT=artifacts,
        _MLFLOW_SERVER_ARTIFACT_DESTINATION=str(folder / "artifacts"),
        _MLFLOW_SERVER_SERVE_ARTIFACTS="true",
        MLFLOW_DISABLE_TELEMETRY="true",
    )
    # Each search would try to import it, in vain: it needs a package of MLflow's extra "auth".
    sys.modules["mlflow.server.auth"] = None
    from mlflow.server import app
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(database, database, artifacts)
    run_simple("127.0.0.1", 0, app, threaded=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

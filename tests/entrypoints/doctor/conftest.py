"""The host of the tests, and a connection to it."""

from tests.execution.host.conftest import connection as connection
from tests.execution.host.conftest import kfp_host as kfp_host

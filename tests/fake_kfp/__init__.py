"""The KFP host of the tests: the dev host, with faults that tests switch on, and with checks of what it is sent."""

from tests.fake_kfp.server import KfpHost
from tests.fake_kfp.users import SharedHost

__all__ = ["KfpHost", "SharedHost"]

"""Write the facts that this interpreter finds as JSON to the file that its argument names."""

import json
import os
import sys
from pathlib import Path

import fsspec
import sklearn

import torchx_kfp

found = {
    "version": list(sys.version_info[:3]),
    "sklearn": sklearn.__version__,
    "fsspec": fsspec.__version__,
    "torchx_kfp": torchx_kfp.__file__,
    "in_container": Path("/.dockerenv").exists(),
    "writable": not os.statvfs(torchx_kfp.__file__).f_flag & os.ST_RDONLY,
}
Path(sys.argv[1]).write_text(json.dumps(found))

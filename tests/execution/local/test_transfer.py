"""Files of artifacts that are copied here: from object stores, and from where the user says."""

import http.server
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.facts import says
from torchx_kfp.execution.local.executors.executor import AttemptError
from torchx_kfp.execution.local.transfer import copy_here


def test_an_artifact_of_kfps_own_store_is_copied_from_s3(s3_base, tmp_path, monkeypatch):
    """KFP calls it ``minio``; without its address and credentials, the message says what to set."""
    import s3fs

    s3fs.S3FileSystem().pipe(f"{s3_base}/model", b"weights")
    url = f"{s3_base}/model".replace("s3://", "minio://")
    folder = str(tmp_path)
    copy_here(url, f"{folder}/copy", ())
    assert (tmp_path / "copy").read_bytes() == b"weights"
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    facts = (f"{url}/no", "'AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY' and 'AWS_ENDPOINT_URL'")
    with pytest.raises(AttemptError, match=says(*facts)):
        copy_here(f"{url}/no", f"{folder}/other", ())


def test_files_come_from_object_stores_and_from_where_the_user_says(tmp_path):
    data, out, folder = tmp_path / "data", tmp_path / "out", str(tmp_path / "out")
    data.mkdir()
    (data / "key").write_text("SECRET")
    (data / "link").symlink_to(data / "key")
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"SECRET")

        do_HEAD = do_GET

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = f"http://127.0.0.1:{server.server_port}"
        for url, way_out in (
            (f"{data}/key", f"--mount {data}/key:ro"),
            (f"file://{data}/../data/key", f"--mount {data}/key:ro"),
            (f"local://{data}/key", f"--copy-from local://{data}/key"),
            (f"simplecache::file://{data}/key", "chained"),
            (f"reference://::{site}/refs", "chained"),
            (f"s3://bucket/key::{site}/x", "chained"),
            (f"dir://{data}/key", "--copy-from dir://"),
            (f"{site}/model", f"--copy-from {site}/model"),
            (f"{site}/mod/../model", ".. in its path"),
            (f"{site}/mod/%2E%2e/model", ".. in its path"),
            ("oci://registry/model:1", "only KFP's importer"),
            ("huggingface://org/model", "only KFP's importer"),
            ("http://169.254.169.254/latest", "--copy-from http://169.254.169.254/latest"),
            ("hdfs://namenode:8020/x", "--copy-from hdfs://namenode:8020/x"),
        ):
            with pytest.raises(AttemptError, match=says(url, way_out)):
                copy_here(url, f"{folder}/copy", [f"{data}/other", f"{site}/mod", "https://example.com"])
        assert (asked, out.exists()) == ([], False)
        for number, (url, place) in enumerate(((f"{site}/model", site), (f"{data}/key", data), (f"{data}/link", data))):
            copy_here(url, f"{folder}/{number}", [str(place)])
            assert (out / str(number)).read_text() == "SECRET"
        assert asked
        server.shutdown()


def test_several_stages_may_copy_a_folder_to_one_place_at_once(tmp_path):
    """As into the workspace that they share, which may be on another disk."""
    (tmp_path / "data").mkdir()
    for number in range(200):
        (tmp_path / "data" / str(number)).write_text("1")
    threads = ThreadPoolExecutor(4)
    copies = [threads.submit(copy_here, f"{tmp_path}/data", f"{tmp_path}/shared/data", ["/"]) for _ in range(4)]
    assert [copy.exception() for copy in copies] == [None] * 4
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["data"]
    assert len(list((tmp_path / "shared/data").iterdir())) == 200

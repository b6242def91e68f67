"""make demo and make up, whole: the real handlers, the fake Sume, real processes."""

import contextlib
import json
import re
import signal

import psutil
import psycopg
import pytest

from local.fake_sume import Behaviour, FakeSume
from local.postgres import EmbeddedPostgres
from tests.e2e.conftest import begin, end, processes_of, wait_until, write_prompts
from tests.support.folders import temporary_folder

pytestmark = pytest.mark.timeout(150)


def number(output, name):
    """The number that stands behind a name in the table."""
    found = re.search(rf"│\s+{name}\s+│\s+(\d+)", output)
    assert found, output
    return int(found[1])


class Whole:
    """A demo from its start to its end. It takes as long as a lost webhook, so it goes on in the
    background while other tests run."""

    def __init__(self, base, *arguments):
        self.folder = base / "folder"
        self.prompts = write_prompts(base)
        self.arguments = arguments
        self.process = self.begin()

    def begin(self):
        return begin(self.folder, "demo", *self.arguments, str(self.prompts))

    def kill_everything(self):
        root = psutil.Process(self.process.pid)
        everything = [root, *root.children(recursive=True)]
        assert len(everything) > 6
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):  # its parent's end was its own
                process.kill()
        end(self.process)


@pytest.fixture(scope="module", autouse=True)
def whole():
    """A demo that nothing happens to."""
    with temporary_folder() as folder:
        demo = Whole(folder)
        yield demo
        end(demo.process)


@pytest.fixture(scope="module", autouse=True)
def killed():
    """A demo of which every process was killed in the middle, started again."""
    with temporary_folder() as folder:
        demo = Whole(folder, "--calm")
        for line in demo.process.stdout:
            if "done 0" not in line and " done " in line:
                break  # some are done, others are not
        demo.kill_everything()
        demo.process = demo.begin()
        yield demo
        end(demo.process)


def test_nothing_outlives_a_killed_demo(start, prompts, folder):
    demo = start("demo", str(prompts))
    for line in demo.stdout:
        if "working" in line:
            break
    children = psutil.Process(demo.pid).children(recursive=True)
    assert len(children) > 6
    demo.kill()
    demo.wait()
    wait_until(lambda: processes_of(folder) == [], 20)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_cleanly(start, prompts, folder, how):
    demo = start("demo", str(prompts))
    for line in demo.stdout:
        if "working" in line:
            break
    demo.send_signal(how)
    output, _ = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert "Interrupted. Nothing is lost" in output
    assert "Traceback" not in output
    assert processes_of(folder) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("text\nx\n", "no column is named prompt"),
        ("prompt\n" + "x" * 33_000 + "\n", "There is no usable prompt in"),
        (None, "the file cannot be read: No such file or directory"),
    ],
)
def test_a_file_without_prompts_is_refused(start, tmp_path, content, said):
    path = tmp_path / "file.csv"
    if content is not None:
        path.write_text(content)
    demo = start("demo", PROMPTS=str(path))
    output, _ = demo.communicate(timeout=30)
    assert demo.returncode == 2
    assert said in output
    assert "Traceback" not in output


def test_the_real_api_is_polled_only_and_a_file_is_paid_once(start, prompts):
    with FakeSume(api_keys=["sume_live_x"], job_seconds=(0.1, 0.5)) as sume:
        environment = {"SUME_BASE_URL": sume.url, "SUME_API_KEY": "sume_live_x"}
        first = start("demo", str(prompts), **environment)
        output, _ = first.communicate(timeout=90)
        assert first.returncode == 0, output
        assert "the real Sume" in output
        assert number(output, "jobs accepted") == 12
        assert number(output, "webhooks applied") == 0
        assert sume.billed == 12
        bodies = [json.loads(post.body) for post in sume.posts()]
        assert {body["mode"] for body in bodies} == {"async"}
        assert not any("webhook_url" in body for body in bodies)
        again = start("demo", str(prompts), **environment)
        output, _ = again.communicate(timeout=90)
        assert again.returncode == 0, output
        assert "0 rows inserted, 12 were there already" in output
        assert sume.billed == 12


def test_a_refused_key_ends_the_run_with_a_clear_sentence(start, prompts):
    with FakeSume() as sume:
        sume.always_on_submit(Behaviour(status=401))
        demo = start("demo", str(prompts), SUME_BASE_URL=sume.url, SUME_API_KEY="sume_live_x")
        output, _ = demo.communicate(timeout=60)
        assert demo.returncode == 1
        assert "Sume refuses every request" in output
        assert sume.billed == 0


def test_up_runs_until_interrupted(start, folder):
    up = start("up")
    shown = []
    for line in up.stdout:
        shown.append(line)
        if "working 0" in line:
            break
    text = "".join(shown)
    url = re.search(r"Database\s+(\S+)", text)[1]
    assert "insert into render_jobs (prompt) values" in text
    with psycopg.connect(url, autocommit=True) as connection:
        (row,) = connection.execute(
            "insert into render_jobs (prompt) values ('a lighthouse') returning id"
        ).fetchone()

        def accepted():
            look = "select sume_job_id is not null from render_jobs where id = %s"
            return connection.execute(look, (row,)).fetchone()[0]

        wait_until(accepted, 10)
    up.send_signal(signal.SIGINT)
    output, _ = up.communicate(timeout=30)
    assert up.returncode == 0, output
    assert "Traceback" not in output
    assert processes_of(folder) == []
    with EmbeddedPostgres(folder / "postgres") as server, psycopg.connect(server.url) as connection:
        assert connection.execute("select count(*) from gen_job").fetchone() == (1,)


def test_killed_as_a_whole_it_goes_on_where_it_was(killed):
    output, _ = killed.process.communicate(timeout=120)
    assert killed.process.returncode == 0, output
    assert "Run 1 was interrupted: going on with it." in output
    assert "0 rows inserted, 12 were there already" in output
    assert number(output, "rows") == number(output, "jobs billed") == 12
    assert number(output, "done") == 12


def test_a_small_file_goes_in_and_every_row_comes_out(whole):
    output, _ = whole.process.communicate(timeout=120)
    assert whole.process.returncode == 0, output
    assert "line 5: has no prompt" in output
    assert "line 9: priority must be 0 (first), 1, 2 or 3 (last)" in output
    assert "prompts.csv: 12 rows inserted, 2 lines not used." in output
    assert number(output, "rows") == number(output, "jobs billed") == 12
    assert number(output, "done") + number(output, "needs attention") == 12
    assert number(output, "follow-ups") == 12
    # The weather that happens to every run, however few rows there are.
    assert number(output, "replays") >= 1
    assert number(output, "webhooks duplicate") >= 1
    assert number(output, "webhooks early") >= 1
    assert number(output, "polls") >= 1
    assert "All promises kept" in output
    assert processes_of(whole.folder) == []
    logs = "".join(path.read_text() for path in (whole.folder / "logs").glob("*.log"))
    state = json.loads((whole.folder / "state.json").read_text())
    assert "still life" not in logs
    assert state["webhook_secret"] not in logs
    assert state["api_key"] not in logs

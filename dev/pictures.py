"""Take the pictures in ``docs`` from real runs: ``make pictures``.

``pictures/run.svg`` is a terminal during a run of ``pipelines/digits.py``, ``pictures/report.png`` the run's report in
Chromium, ``pictures/ui.png`` the UI with more of its runs, and ``pictures/search.png`` the search in the report of the
first pipeline in ``guides/search.md``. (``pictures/kfp-*.png`` are screenshots of KFP's own UI, taken by hand.)
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

REPOSITORY = Path(__file__).parent.parent
DOCS = REPOSITORY / "docs"
PICTURES = DOCS / "pictures"
COLUMNS, ROWS = 100, 24
COMMAND = ["torchx-kfp", "run", "pipelines/digits.py", "--tracker-base", "results", "--parallelism", "2"]
#: A page with files, and how its search becomes one of more trials.
SEARCH, ROUNDS, MORE = DOCS / "guides" / "search.md", "rounds=2, trials=3", "rounds=4, trials=6"
#: Background, foreground, and the eight colors.
THEME = TerminalTheme(
    (27, 31, 40),
    (215, 220, 228),
    [
        (110, 118, 132),
        (240, 113, 120),
        (126, 211, 133),
        (229, 192, 123),
        (97, 175, 239),
        (198, 120, 221),
        (86, 182, 194),
        (215, 220, 228),
    ],
)
#: What rich writes, without the fonts that it loads from a host.
SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def frames(command: list[str], folder: Path) -> list[list[Text]]:
    """Run the command in a terminal, and return each of its screens."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    shown = []
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the program has ended
            break
        stream.feed(data)
        shown.append([line(screen, number) for number in range(ROWS)])
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise SystemExit("\n".join(text.plain for text in shown[-1]))
    return shown


def line(screen: pyte.Screen, number: int) -> Text:
    """Return a styled line of the screen."""
    text = Text()
    for column in range(COLUMNS):
        cell = screen.buffer[number][column]
        color = None if cell.fg == "default" else cell.fg.replace("brown", "yellow").replace("bright", "bright_")
        text.append(cell.data, Style(color=color, bold=cell.bold, underline=cell.underscore))
    text.rstrip()
    return text


def liveliest(shown: list[list[Text]]) -> list[Text]:
    """Return the screen with the most running and finished stages, without the text above them."""

    def score(lines: list[Text]) -> int:
        text = "\n".join(line.plain for line in lines)
        return text.count(" │ ") + sum(map(int, re.findall(r" (\d)/\d  2 running", text)))

    lines = max(shown, key=score)
    return lines[next(number for number, text in enumerate(lines) if text.plain.startswith("digits ")) :]


def save_terminal(lines: list[Text], command: str, path: Path) -> None:
    while lines and not lines[-1].plain.strip():
        lines = lines[:-1]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bright_black"), (command, "bold")), highlight=False)
    for text in lines:
        console.print(text, overflow="crop", no_wrap=True, highlight=False)
    path.write_text(console.export_svg(title="torchx-kfp", theme=THEME, code_format=SVG, unique_id="run"))


def save_page(url: str, path: Path, part: str = "", size: str = "1280,1750") -> None:
    """Save a screenshot of a page, or of the element that matches a CSS selector."""
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        browser.get(url)
        time.sleep(1)
        if part:  # by itself, so that all of it is in the window
            browser.execute_script("document.body.replaceChildren(document.querySelector(arguments[0]))", part)
            browser.find_element("css selector", "body").screenshot(str(path))
        else:
            browser.save_screenshot(str(path))
    finally:
        browser.quit()


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("pipelines", "components"):
            (folder / part).symlink_to(REPOSITORY / part)
        shown = frames(COMMAND, folder)
        save_terminal(liveliest(shown), " ".join(COMMAND), PICTURES / "run.svg")
        program = str(Path(sys.executable).parent / "torchx-kfp")
        subprocess.run([program, "report", "latest", "-o", "report.html"], cwd=folder, check=True)
        save_page((folder / "report.html").as_uri(), PICTURES / "report.png")
        for words in (["-p", "seed=1"], ["-p", "seed=2"], ["-p", "seed=3"], ["-p", "threshold=0.999"]):
            subprocess.run([program, *COMMAND[1:], "--quiet", *words], cwd=folder, check=True)
        serve = [program, "ui", "--port", "0", "--tracker-base", "results"]
        with subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout
            url = server.stdout.readline().strip()
            save_page(f"{url}?sort=-evaluate%2Ftest_accuracy", PICTURES / "ui.png", size="1280,620")
            server.terminate()
        for found in re.finditer(r"^```python\n# (\w+\.py)\n(.*?)^```", SEARCH.read_text(), re.DOTALL | re.MULTILINE):
            (folder / found[1]).write_text(found[2].replace(ROUNDS, MORE))
        for words in (["run", "tune.py", "--tracker-base", "results"], ["report", "latest", "-o", "search.html"]):
            subprocess.run([program, *words], cwd=folder, check=True)
        save_page((folder / "search.html").as_uri(), PICTURES / "search.png", ".search")


if __name__ == "__main__":
    main()

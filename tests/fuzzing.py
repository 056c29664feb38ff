"""Feed every parser with damaged and hostile files; say what came of it.

    python -m tests.fuzzing COUNT [PARSER]

In a process of its own: an audit hook cannot be taken back, the most memory a process ever took
neither, and a parser that crashes in C takes the process with it.
"""

import json
import mmap
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.forks import Fork
from tests.fuzz_inputs import FORMATS, PLAIN, changed, inputs
from tests.fuzz_parsers import all_parsers
from tests.outside import Surroundings, watch
from tests.runs import finish

BATCH = 500
PHASES = (Phase.generate, Phase.shrink)
LONGEST_SECONDS = 100
"""From then on an input counts as one that hangs; the slowest ones take two."""
LONGEST_LINE = 20_000
"""What an error may say: inputs are quoted."""


class Fuzzer:
    """One parser in a folder of its own."""

    def __init__(self, parser, folder, touched):
        self.parser, self.folder, self.touched = parser, folder, touched
        self.names = list(parser.files)
        self.num_read = self.num_refused = self.peak = self.longest_input = 0
        self.longest_seconds, self.offenders = 0.0, {}
        for name, content in parser.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        parser.read(folder)  # what is valid is read, and what is imported late is there
        size, peak = address_space()
        # Untouched: it only lifts the size to where the peak is, so that any rise shows.
        self.ballast = mmap.mmap(-1, max(peak - size, mmap.PAGESIZE))

    def check(self, drawn):
        """One input: it is read, or refused by the parser's own error."""
        name = self.names[drawn.file % len(self.names)]
        content = self._content(name, drawn)
        (self.folder / name).write_bytes(content)
        try:
            if drawn.mended:
                self.parser.mend(self.folder)
            self._read(content)
        finally:
            for changed_name in (name, *self.parser.rewritten):
                (self.folder / changed_name).write_bytes(self.parser.files[changed_name])

    def _content(self, name, drawn):
        if drawn.random is not None:
            return drawn.random
        original = self.parser.files[name]
        form = FORMATS.get(Path(name).suffix, PLAIN) if drawn.mended else PLAIN
        others = list(self.parser.files.values())
        return form.close(changed(form.open(original), drawn.changes, others), original)

    def _read(self, content):
        size, peak = address_space()
        begin = time.monotonic()
        self.touched.clear()
        try:
            self.parser.read(self.folder)
            self.num_read += 1
        except self.parser.errors as error:
            self.num_refused += 1
            check_message(error)
        seconds, touched, new_peak = time.monotonic() - begin, [*self.touched], address_space()[1]
        # The peak rises once, but hypothesis asks again.
        taken = self.offenders.get(content, new_peak - size)
        if taken > self.parser.bound and (new_peak > peak or content in self.offenders):
            self.offenders[content] = taken
            raise AssertionError(f"{len(content)} bytes of input took {taken:,} bytes of memory")
        assert not touched, f"touched outside: {touched}"
        assert seconds < LONGEST_SECONDS, f"it took {seconds:.1f} s"
        self.peak = max(self.peak, taken)
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.longest_input = max(self.longest_input, len(content))

    @property
    def num_inputs(self):
        return self.num_read + self.num_refused

    def run(self, number):
        """So many inputs at least; what hypothesis reports, if it found something."""
        batch = 0
        while self.num_inputs < number:
            examples = min(BATCH, number - self.num_inputs)
            test = given(inputs())(self.check)
            options = settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=PHASES,
                suppress_health_check=list(HealthCheck),
            )
            try:
                seed(batch)(options(test))()
            except Exception as error:
                return "".join(traceback.format_exception(error))
            batch += 1
        return None


def check_message(error):
    """One line, but for a report of bad files, which has one for each."""
    lines = str(error).splitlines()
    assert len(lines) == 1 or type(error).__name__ == "BadFilesError", lines
    assert all(len(line) < LONGEST_LINE for line in lines), "a message without an end"


def address_space():
    """The bytes of memory that this process has asked for, and the most it ever had."""
    with open("/proc/self/status", "rb") as status:
        lines = dict(line.split(b":", 1) for line in status)
    return tuple(int(lines[name].split()[0]) * 1024 for name in (b"VmSize", b"VmPeak"))


def fuzz(number, folder, only=None):
    """Share the inputs among the parsers; the figures of each, and what failed."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    parsers = [parser for parser in all_parsers() if only in (None, parser.name)]
    given_folder, touched, rows, failures = folder / "given", [], [], {}
    watch([given_folder], lambda event, path: touched.append(f"{event} {path}"))
    longest_seconds = longest_input = 0
    fuzzers = []
    for k, parser in enumerate(parsers):
        begin = time.monotonic()
        share = (number * (k + 1)) // len(parsers) - (number * k) // len(parsers)
        fuzzer = Fuzzer(parser, given_folder / str(k), touched)
        fuzzers.append(fuzzer)  # with what it has lifted the size by
        failure = fuzzer.run(share)
        if failure is not None:
            failures[parser.name] = failure
        rows.append(
            {
                "parser": parser.name,
                "inputs": fuzzer.num_inputs,
                "read": fuzzer.num_read,
                "refused": fuzzer.num_refused,
                "peak_bytes": fuzzer.peak,
                "bound_bytes": parser.bound,
            }
        )
        longest_seconds = max(longest_seconds, fuzzer.longest_seconds)
        longest_input = max(longest_input, fuzzer.longest_input)
        print(rows[-1], f"{time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    return {
        "inputs": sum(row["inputs"] for row in rows),
        "batch": BATCH,
        "longest_seconds": round(longest_seconds, 1),
        "longest_input": longest_input,
        "parsers": rows,
        "failures": failures,
    }


def fuzz_apart(number, root):
    """The same in another process, with surroundings that must not change."""
    surroundings = Surroundings(Path(root))
    before = surroundings.snapshot()
    process = Fork(
        [sys.executable, "-c", "from tests.fuzzing import main; main()", str(number)],
        cwd=surroundings.work,
        env=surroundings.variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    done = finish(process, timeout=None)
    assert done.code == 0, f"the process ended with {done.code}\n{done.stdout}"
    assert surroundings.snapshot(leave_out=[surroundings.work / ".hypothesis"]) == before
    return json.loads(done.stdout)


def main():
    in_memory = Path("/dev/shm")  # many thousands of small files
    where = in_memory if in_memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fuzzing", dir=where) as folder:
        result = fuzz(int(sys.argv[1]), Path(folder), *sys.argv[2:])
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""What ``import thinwire`` offers and what it does not do."""

from __future__ import annotations

import subprocess
import sys

import thinwire as tw


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, capture_output=True, text=True).stdout


def test_at_most_20_names_each_documented():
    assert len(tw.__all__) <= 20
    for name in tw.__all__:
        value = getattr(tw, name)
        assert name == "__version__" or value.__doc__, name


def test_importing_starts_nothing():
    program = (
        "import os, sys, threading\n"
        "read = []\n"
        "class Watched(dict):\n"
        "    def get(self, k, d=None): read.append(k); return dict.get(self, k, d)\n"
        "    def __getitem__(self, k): read.append(k); return dict.__getitem__(self, k)\n"
        "import numpy\n"
        "os.environ = Watched(os.environ)\n"
        "import thinwire, thinwire.codec\n"
        "assert threading.active_count() == 1\n"
        "assert not {'torch', 'numba', 'rich', 'typer'} & set(sys.modules)\n"
        "assert not [k for k in read if 'THINWIRE' in k or 'NUMBA' in k], read\n"
        "print('fine')"
    )
    assert run(program) == "fine\n"


def test_codecs_work_without_torch():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, thinwire as tw, thinwire.codec as package\n"
        "from thinwire.codec import frame\n"
        "x = np.ones((1, 100), dtype=np.float32)\n"
        "assert (frame.loads(frame.dumps(x, tw.codec('int4'))) == 1).all()\n"
        "assert package('int4') == tw.codec('int4') and package.REGISTRY\n"
        "try: tw.compress\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    assert run(program) == "thinwire.compress needs torch: pip install 'thinwire[torch]'\n"


def test_modules_come_with_their_name_and_need_torch():
    program = (
        "import sys, thinwire as tw\n"
        "assert 'torch' not in sys.modules\n"
        "tw.feedback.Decayed(beta=0.9), tw.optim.OneBitAdam\n"
        "assert 'torch' in sys.modules; print('fine')"
    )
    assert run(program) == "fine\n"
    program = (
        "import sys; sys.modules['torch'] = None\nimport thinwire as tw\ntry: tw.optim\nexcept ModuleNotFoundError as e: print(e)"
    )
    assert run(program) == "thinwire.optim needs torch: pip install 'thinwire[torch]'\n"


def test_unknown_attribute():
    assert run("import thinwire\ntry: thinwire.nothing\nexcept AttributeError as e: print(e)").startswith("module 'thinwire'")

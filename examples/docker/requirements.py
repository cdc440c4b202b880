"""Print what the installed AutoDIAL needs, without an ONNX Runtime, for `pip install -r`: requirements.py [EXTRA...].

The package asks for onnxruntime-gpu where there is one, which runs on CPUs, too; onnxruntime is 340 MB smaller.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import requires

for line in requires("autodial-layers") or []:
    requirement, _, marker = line.partition(";")
    extra = re.search(r"""extra\s*==\s*["'](\w+)["']""", marker)
    if not requirement.startswith("onnxruntime") and (extra is None or extra[1] in sys.argv[1:]):
        print(requirement.strip())

"""Where the packaged executable starts: the command line, nothing else."""

import multiprocessing
import sys

if __name__ == "__main__":
    multiprocessing.freeze_support()
    from appliance.__main__ import main

    sys.exit(main())

"""`python -m stayfinite …` is `stayfinite …`."""

from .cli import main

if __name__ == "__main__":
    main()

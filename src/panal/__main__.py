"""``python -m panal``: the same as the ``panal`` command."""

from panal.cli.main import main

if __name__ == "__main__":
    main()

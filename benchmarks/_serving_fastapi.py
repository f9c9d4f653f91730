"""A plain FastAPI handler, as its documentation shows it.

    PYTHON _serving_fastapi.py file|json SIGNATURE SAVED_MODEL PORT

`file`: a request is a form with a file (a picture, or a float32 tensor). `json`: a nested list.
"""

import sys
from typing import Annotated

import numpy as np
import uvicorn
from _serving_model import load, row
from fastapi import FastAPI, File
from pydantic import BaseModel

form, name, folder, port = sys.argv[1:]
model = load(folder, name)
app = FastAPI()


class Row(BaseModel):
    image: list[list[list[float]]]


class Answer(BaseModel):
    class_ids: int
    probabilities: list[float]


# FastAPI runs functions that are not `async` in a pool of threads.
def predict_file(file: Annotated[bytes, File()]) -> Answer:
    return Answer(**{key: array[0].tolist() for key, array in model([row(file, name)]).items()})


def predict_json(body: Row) -> Answer:
    outputs = model(np.array([body.image], np.float32))
    return Answer(**{key: array[0].tolist() for key, array in outputs.items()})


app.post("/predict")(predict_file if form == "file" else predict_json)
uvicorn.run(app, port=int(port), log_level="warning", access_log=False)

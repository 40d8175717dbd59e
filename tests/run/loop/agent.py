"""An ordinary program: asks its model once over HTTP and prints the reply. The standard library only, so that it starts at once."""

import json
import os
import sys
import urllib.request

body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": sys.argv[1]}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
with urllib.request.urlopen(request) as response:
    reply = json.load(response)
if "ACKNOWLEDGED" in os.environ:
    with open(os.environ["ACKNOWLEDGED"], "a") as file:
        file.write(reply["id"] + "\n")
print(reply["choices"][0]["message"]["content"])

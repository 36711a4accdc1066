"""The page behind a one-time link: an account is made, or its password is set. The code stands
behind the `#` of the address, which no browser sends and no log keeps.
"""

from starlette.responses import Response

from loopwright.server.routes import Answer, Asked, Family, Route

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Loopwright: your account</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 24rem; margin: 4rem auto; padding: 0 1rem }
label, input, button { display: block; width: 100%; box-sizing: border-box; margin: .4rem 0 }
</style>
<h1>Your account</h1>
<form id="form">
<label>Name <input name="name" autocomplete="username" required maxlength="63"></label>
<label>Password <input name="password" type="password" autocomplete="new-password" required
 minlength="8" maxlength="128"></label>
<button>Set it</button>
</form>
<p id="told" role="status"></p>
<script src="/setup.js"></script>
</html>
"""
SCRIPT = """
const told = document.getElementById("told");
document.getElementById("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = Object.fromEntries(new FormData(event.target));
  const reply = await fetch("/api/v1/setup", {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({...given, code: location.hash.slice(1)}),
  });
  const answer = await reply.json();
  told.textContent = reply.ok ? `Done: ${answer.name} is ${answer.role}.` : answer.detail;
});
"""


async def page(_asked: Asked) -> Answer:
    return Response(PAGE, media_type="text/html")


async def script(_asked: Asked) -> Answer:
    return Response(SCRIPT, media_type="text/javascript")


FAMILY = Family(
    name="setup",
    prefix="/setup",
    routes=(
        Route(
            method="GET",
            path="/setup",
            handle=page,
            need="open",
            say="The page behind a one-time link",
            answer=str,
            media="text/html",
        ),
        Route(
            method="GET",
            path="/setup.js",
            handle=script,
            need="open",
            say="The script of that page",
            answer=str,
            media="text/javascript",
        ),
    ),
)

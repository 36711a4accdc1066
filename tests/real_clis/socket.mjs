// A loop driven by the client that web pages use: start, review, approve; prints what it was sent.
import { createRequire } from "node:module";

const [modules, url, token, agentId] = process.argv.slice(2);
const { io } = createRequire(`${modules}/`)("socket.io-client");
const socket = io(url, { auth: { token }, reconnection: false });
const seen = [];
const say = (event, data) => new Promise((done) => socket.emit(event, data, done));

socket.onAny((event, data) => {
  seen.push([event, data]);
  if (data.level === "action_required") {
    say("loop:approve", { agentId, loopId: data.loopId, approved: true });
  }
  if (event === "agent:status" && data.status === "idle") {
    console.log(JSON.stringify({ seen, transport: socket.io.engine.transport.name }));
    socket.close();
  }
});
socket.on("connect_error", (error) => {
  console.log(JSON.stringify({ refused: error.message, data: error.data }));
  process.exit(1);
});
socket.on("connect", async () => {
  const answer = await say("loop:start", { agentId, message: "Do it." });
  seen.push(["answer", answer]);
  await say("subscribe", { run: answer.run, after: 0 });
});

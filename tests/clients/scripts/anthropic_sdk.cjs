"use strict";

const Anthropic = require("@anthropic-ai/sdk");
const given = require("./seen.cjs");

const client = new Anthropic({ baseURL: given.node, apiKey: "none" });
const { name, description, parameters } = given.weather;
const tools = [{ name, description, input_schema: parameters }];
const asked = (text = given.question) => [{ role: "user", content: text }];
const request = (fields) => ({
  model: given.speaker,
  max_tokens: 200,
  messages: asked(),
  ...fields,
});
const ask = (fields) => client.messages.create(request(fields));
const used = (usage) => [usage.input_tokens, usage.output_tokens];
const textOf = (message) =>
  message.content
    .filter((block) => block.type === "text")
    .map((block) => block.text)
    .join("");

async function whole() {
  const message = await ask({});
  return { text: textOf(message), usage: used(message.usage) };
}

async function streamed() {
  const pieces = [];
  const stream = client.messages.stream(request({})).on("text", (text) => pieces.push(text));
  const { usage } = await stream.finalMessage();
  return { text: pieces.join(""), n_pieces: pieces.length, usage: used(usage) };
}

async function answered(message) {
  const calls = message.content.filter((block) => block.type === "tool_use");
  const results = calls.map((call) => ({
    type: "tool_result",
    tool_use_id: call.id,
    content: given.result,
  }));
  const messages = [
    ...asked(),
    { role: "assistant", content: message.content },
    { role: "user", content: results },
  ];
  const last = await ask({ model: given.caller, messages, tools });
  return { calls: calls.map((call) => [call.name, call.input]), text: textOf(last) };
}

async function readMortal(pieces) {
  const stream = client.messages.stream(request({ model: given.mortal }));
  await stream.on("text", (text) => pieces.push(text)).finalMessage();
}

async function main() {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  const calling = request({ model: given.caller, tools });
  given.show({
    version: given.versionOf("@anthropic-ai/sdk"),
    models,
    whole: await whole(),
    streamed: await streamed(),
    tools: await answered(await client.messages.create(calling)),
    tools_streamed: await answered(await client.messages.stream(calling).finalMessage()),
    absent: await given.failure(() => ask({ model: given.absent })),
    too_long: await given.failure(() => ask({ messages: asked(given.tooLong) })),
    died: await given.died(readMortal),
  });
}

main();

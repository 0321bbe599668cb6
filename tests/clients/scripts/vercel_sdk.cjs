"use strict";

const { embedMany, generateText, jsonSchema, stepCountIs, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const given = require("./seen.cjs");

const skulk = createOpenAICompatible({
  name: "skulk",
  baseURL: `${given.node}/v1`,
  includeUsage: true,
});
const { description, parameters } = given.weather;
const weather = tool({
  description,
  inputSchema: jsonSchema(parameters),
  execute: async () => given.result,
});
const request = (model = given.speaker, prompt = given.question) => ({
  model: skulk(model),
  prompt,
});
const calling = { ...request(given.caller), tools: { weather }, stopWhen: stepCountIs(4) };
const used = (usage) => [usage.inputTokens, usage.outputTokens];
const callsOf = (steps) =>
  steps.flatMap((step) => step.toolCalls).map((call) => [call.toolName, call.input]);

async function whole() {
  const { text, usage } = await generateText(request());
  return { text, usage: used(usage) };
}

async function read(stream, pieces) {
  for await (const part of stream.fullStream) {
    if (part.type === "text-delta") pieces.push(part.text);
    if (part.type === "error") throw part.error;
  }
}

async function streamed() {
  const pieces = [];
  const stream = streamText(request());
  await read(stream, pieces);
  return { text: pieces.join(""), n_pieces: pieces.length, usage: used(await stream.usage) };
}

async function toolsWhole() {
  const { steps, text } = await generateText(calling);
  return { calls: callsOf(steps), text };
}

async function toolsStreamed() {
  const stream = streamText(calling);
  await read(stream, []);
  return { calls: callsOf(await stream.steps), text: await stream.text };
}

async function main() {
  const quiet = { ...request(given.mortal), onError: () => {} };
  const { embeddings } = await embedMany({
    model: skulk.textEmbeddingModel(given.embedder),
    values: given.texts,
  });
  given.show({
    version: given.versionOf("ai"),
    whole: await whole(),
    streamed: await streamed(),
    tools: await toolsWhole(),
    tools_streamed: await toolsStreamed(),
    absent: await given.failure(() => generateText(request(given.absent))),
    too_long: await given.failure(() => generateText(request(given.speaker, given.tooLong))),
    died: await given.died((pieces) => read(streamText(quiet), pieces)),
    embedded: embeddings,
  });
}

main();

// Run by test_javascript_clients: unchanged npm packages against a server. Arguments: address, model.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const messages = [{ role: "user", content: "hi" }];

async function openai() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
  const answer = await client.chat.completions.create({ model, messages });
  assert.equal(answer.choices[0].message.content, "hello world");
  assert.equal(answer.choices[0].finish_reason, "stop");
  const options = { include_usage: true };
  const stream = await client.chat.completions.create({ model, messages, stream: true, stream_options: options });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, "hello world");
  assert.ok(usage.completion_tokens > 0);
  const ids = [];
  for await (const found of client.models.list()) ids.push(found.id);
  assert.ok(ids.includes(model));
  const vectors = await client.embeddings.create({ model, input: ["a", "b"] });
  assert.equal(vectors.data.length, 2);
  const response = await client.responses.create({ model, input: "hi" });
  assert.equal(response.output_text, "hello world");
  await assert.rejects(client.chat.completions.create({ model, messages, temperature: 9 }), OpenAI.BadRequestError);
  await assert.rejects(client.chat.completions.create({ model: "nope", messages }), OpenAI.NotFoundError);
}

async function vercel() {
  const provider = createOpenAICompatible({ name: "local", baseURL: `${url}/v1`, includeUsage: true });
  const answer = await generateText({ model: provider(model), prompt: "hi", maxRetries: 0 });
  assert.equal(answer.text, "hello world");
  assert.equal(answer.finishReason, "stop");
  const stream = streamText({ model: provider(model), prompt: "hi", maxRetries: 0 });
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, "hello world");
  assert.ok((await stream.usage).outputTokens > 0);
  const completion = await generateText({ model: provider.completionModel(model), prompt: "hi", maxRetries: 0 });
  assert.equal(completion.text, "hello world");
}

await openai();
await vercel();

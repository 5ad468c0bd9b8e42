from openai import OpenAI


def agent(resource, task):
    client = OpenAI(base_url=resource.model_api, api_key="none")
    messages = [{"role": "user", "content": task.question}]
    reply = client.chat.completions.create(model="any", messages=messages).choices[0].message.content or ""
    return sum(letter in "aeiou" for letter in reply) / max(1, len(reply))

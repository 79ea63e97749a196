"""GPT-2's training step in PyTorch, as its users write it: bf16 autocast, scaled_dot_product_attention, a tied head,
clipping to norm 1, fused AdamW. Prints a line of JSON: the version, and the seconds of each step.
"""
import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, vocabulary, sequence):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "width", "heads", "vocabulary", "sequence", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(1)
    with torch.device(options.device):
        model = Gpt(options.layers, options.width, options.heads, options.vocabulary, options.sequence)
        tokens, labels = (torch.randint(options.vocabulary, (options.batch, options.sequence)) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss_of = torch.compile(model) if options.compile else model
    seconds = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(options.device, torch.bfloat16):
            loss = loss_of(tokens, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()  # Waits, as recast's step does for its metrics.
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"version": torch.__version__, "seconds": seconds}))


if __name__ == "__main__":
    main()

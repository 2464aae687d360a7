"""MUSIQ-SPAQ in plain operations of PyTorch, one frame at a time, fp32."""
import torch
import torch.nn.functional as F

WIDTH, HEADS, BLOCKS, MLP = 384, 6, 14, 1152


def random_weights():
    """Published names and shapes; outputs of a layer of the size of its inputs, norms that are not all alike."""
    t = {}

    def linear(name, out, into, bias=True):
        t[name + ".weight"] = torch.randn(out, into) / into ** 0.5
        if bias:
            t[name + ".bias"] = 0.1 * torch.randn(out)

    def norm(name, n):
        t[name + ".weight"] = 1 + 0.1 * torch.randn(n)
        t[name + ".bias"] = 0.1 * torch.randn(n)

    for name, out, into, k in (("conv_root", 64, 3, 7), ("block1.conv1", 64, 64, 1), ("block1.conv2", 64, 64, 3), ("block1.conv3", 256, 64, 1),
                               ("block1.conv_proj", 256, 64, 1)):
        t[name + ".weight"] = torch.randn(out, into, k, k)
    for name, n in (("gn_root", 64), ("block1.gn1", 64), ("block1.gn2", 64), ("block1.gn3", 256), ("block1.gn_proj", 256)):
        norm(name, n)
    linear("embedding", WIDTH, 16384)
    e = "transformer_encoder"
    t[f"{e}.cls"] = torch.randn(1, 1, WIDTH)
    t[f"{e}.posembed_input.position_emb"] = torch.randn(1, 100, WIDTH)
    t[f"{e}.scaleembed_input.scale_emb"] = torch.randn(3, WIDTH)
    for b in range(BLOCKS):
        p = f"{e}.transformer.encoderblock_{b}"
        norm(p + ".norm1", WIDTH)
        norm(p + ".norm2", WIDTH)
        for name in ("query", "key", "value", "out"):
            linear(f"{p}.attention.{name}", WIDTH, WIDTH)
        linear(p + ".mlp.fc1", MLP, WIDTH)
        linear(p + ".mlp.fc2", WIDTH, MLP)
    norm(f"{e}.encoder_norm", WIDTH)
    linear("head", 1, WIDTH)
    return t


def same(x, k, stride):
    """TensorFlow's padding: what is odd goes behind."""
    across, down = (max((-(-n // stride) - 1) * stride + k - n, 0) for n in (x.shape[3], x.shape[2]))
    return F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))


class Network:
    def __init__(self, tensors):
        self.t = dict(tensors)
        for name in ("conv_root", "block1.conv1", "block1.conv2", "block1.conv3", "block1.conv_proj"):
            w = tensors[name + ".weight"].double()
            mean, deviation = w.mean((1, 2, 3), keepdim=True), w.std((1, 2, 3), keepdim=True)
            self.t[name + ".weight"] = ((w - mean) / (deviation + 1e-5)).float()

    def conv(self, x, name, stride=1):
        w = self.t[name + ".weight"]
        return F.conv2d(same(x, w.shape[2], stride), w, None, stride)

    def group_norm(self, x, name, eps=1e-4):
        return F.group_norm(x, 32, self.t[name + ".weight"], self.t[name + ".bias"], eps)

    def linear(self, x, name):
        return F.linear(x, self.t[name + ".weight"], self.t[name + ".bias"])

    def norm(self, x, name):
        return F.layer_norm(x, (WIDTH,), self.t[name + ".weight"], self.t[name + ".bias"], 1e-6)

    def stem(self, x):
        x = F.relu(self.group_norm(self.conv(x, "conv_root", 2), "gn_root", 1e-6))
        x = F.max_pool2d(same(x, 3, 2), 3, 2)
        y = F.relu(self.group_norm(self.conv(x, "block1.conv1"), "block1.gn1"))
        y = F.relu(self.group_norm(self.conv(y, "block1.conv2"), "block1.gn2"))
        y = self.group_norm(self.conv(y, "block1.conv3"), "block1.gn3")
        return F.relu(y + self.group_norm(self.conv(x, "block1.conv_proj"), "block1.gn_proj"))

    def patches(self, frame):
        """Patches [N,3,32,32] of three sizes, rows of the table of positions and of scales."""
        h, w = frame.shape[2:]
        pixels, places, scales = [], [], []
        for scale, side in enumerate((224, 384, None)):
            x = frame
            if side:
                ratio = side / max(h, w)
                x = F.interpolate(frame, size=(round(h * ratio), round(w * ratio)), mode="bicubic", align_corners=False)
            across, down = -x.shape[3] % 32, -x.shape[2] % 32
            x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
            rows, columns = x.shape[2] // 32, x.shape[3] // 32
            pixels.append(x.view(3, rows, 32, columns, 32).permute(1, 3, 0, 2, 4).reshape(-1, 3, 32, 32))
            places += [i * 10 // rows * 10 + j * 10 // columns for i in range(rows) for j in range(columns)]
            scales += [scale] * (rows * columns)
        return torch.cat(pixels), torch.tensor(places), torch.tensor(scales)

    def score(self, rgb):
        """rgb: uint8 [H,W,3]."""
        frame = rgb.permute(2, 0, 1)[None].float()
        h, w = frame.shape[2:]
        if max(h, w) > 512:
            ratio = 512.0 / max(h, w)
            frame = F.interpolate(frame, size=(int(h * ratio), int(w * ratio)), mode="bilinear", align_corners=False)
        pixels, places, scales = self.patches((frame / 255 - 0.5) * 2)
        e = "transformer_encoder"
        x = self.linear(self.stem(pixels).permute(0, 2, 3, 1).flatten(1), "embedding")
        x = x + self.t[f"{e}.posembed_input.position_emb"][0, places] + self.t[f"{e}.scaleembed_input.scale_emb"][scales]
        x = torch.cat([self.t[f"{e}.cls"][0], x])[None]
        n = x.shape[1]
        for b in range(BLOCKS):
            p = f"{e}.transformer.encoderblock_{b}"
            y = self.norm(x, p + ".norm1")
            q, k, v = (self.linear(y, f"{p}.attention.{name}").view(1, n, HEADS, -1).transpose(1, 2) for name in ("query", "key", "value"))
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, n, WIDTH)
            x = x + self.linear(y, p + ".attention.out")
            x = x + self.linear(F.gelu(self.linear(self.norm(x, p + ".norm2"), p + ".mlp.fc1")), p + ".mlp.fc2")
        return self.linear(self.norm(x[:, 0], f"{e}.encoder_norm"), "head").item()

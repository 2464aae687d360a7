"""AMT-S in plain operations of PyTorch, batch 1, fp32, with the correlations of all pairs of cells, as the published code has them."""
import torch
import torch.nn.functional as F

CHANNELS, FEATURES = (20, 32, 44, 56), 84
WIDTHS = {4: 112, 3: 132, 2: 96, 1: 60}


def random_weights():
    """Published names and shapes; magnitudes that keep maps near 1, heads that change flows a little."""
    t = {}

    def conv(name, out, into, k, gain=2.0):
        t[name + ".weight"] = torch.randn(out, into, k, k) * (gain / (into * k * k)) ** 0.5
        t[name + ".bias"] = 0.1 * torch.randn(out)

    def slopes(name, n):
        t[name + ".weight"] = 0.25 + 0.05 * torch.randn(n)

    def prelu_conv(name, out, into):
        conv(name + ".0", out, into, 3)
        slopes(name + ".1", out)

    conv("feat_encoder.conv1", 32, 3, 7)
    into = 32
    for layer, width in ((1, 32), (2, 64), (3, 96)):
        for b in range(2):
            p = f"feat_encoder.layer{layer}.{b}"
            conv(f"{p}.conv1", width // 4, into, 1)
            conv(f"{p}.conv2", width // 4, width // 4, 3)
            conv(f"{p}.conv3", width, width // 4, 1)
            if into != width:
                conv(f"{p}.downsample.0", width, into, 1)
            into = width
    conv("feat_encoder.conv2", FEATURES, 96, 1, 1.0)
    for i, c in enumerate(CHANNELS):
        prelu_conv(f"encoder.pyramid{i + 1}.0", c, CHANNELS[i - 1] if i else 3)
        prelu_conv(f"encoder.pyramid{i + 1}.1", c, c)
    c1, c2, c3, c4 = CHANNELS
    for stage, into, out in ((4, 2 * c4 + 1, 4 + c3), (3, 3 * c3 + 4, 4 + c2), (2, 3 * c2 + 4, 4 + c1), (1, 3 * c1 + 4, 24)):
        p, o = f"decoder{stage}.convblock", WIDTHS[stage]
        prelu_conv(f"{p}.0", o, into)
        for i in (1, 2, 3, 4):
            prelu_conv(f"{p}.1.conv{i}", o if i % 2 else 20, o if i % 2 else 20)
        conv(f"{p}.1.conv5", o, o, 3, 0.5)
        slopes(f"{p}.1.prelu", o)
        t[f"{p}.2.weight"] = torch.randn(o, out, 4, 4) * (0.5 / (4 * o)) ** 0.5
        t[f"{p}.2.bias"] = 0.1 * torch.randn(out)
    for stage, feature in ((4, c3), (3, c2), (2, c1)):
        u = f"update{stage}"
        conv(f"{u}.convc1", 64, 392, 1)
        conv(f"{u}.convf1", 40, 4, 7)
        conv(f"{u}.convf2", 20, 40, 3)
        conv(f"{u}.conv", 68, 84, 3)
        conv(f"{u}.gru.0", 76, 72 + feature, 3)
        conv(f"{u}.gru.2", 76, 76, 3)
        for head, out in (("feat_head", feature), ("flow_head", 4)):
            conv(f"{u}.{head}.0", 76, 76, 3)
            conv(f"{u}.{head}.2", out, 76, 3, 0.1)
    conv("comb_block.0", 18, 9, 3)
    slopes("comb_block.1", 18)
    conv("comb_block.2", 3, 18, 3, 0.1)
    return t


def resize(x, factor):
    return x if factor == 1 else F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False, recompute_scale_factor=False)


def sampled(x, at, padding):
    """x [B,C,H,W] at points [B,h,w,2] in pixels, x first."""
    size = torch.tensor([max(x.shape[3] - 1, 1), max(x.shape[2] - 1, 1)], dtype=x.dtype)
    return F.grid_sample(x, 2 * at / size - 1, mode="bilinear", padding_mode=padding, align_corners=True)


def positions(h, w):
    ys, xs = torch.meshgrid(torch.arange(h).float(), torch.arange(w).float(), indexing="ij")
    return torch.stack([xs, ys])[None]


def warp(x, flow):
    return sampled(x, (positions(*x.shape[2:]) + flow).permute(0, 2, 3, 1), "border")


class Network:
    def __init__(self, tensors):
        self.t = tensors

    def conv(self, x, name, stride=1):
        w = self.t[name + ".weight"]
        return F.conv2d(x, w, self.t[name + ".bias"], stride, w.shape[2] // 2)

    def cp(self, x, name, stride=1):
        return F.prelu(self.conv(x, name + ".0", stride), self.t[name + ".1.weight"])

    def leaky(self, x, name):
        return F.leaky_relu(self.conv(x, name), 0.1)

    def features(self, x):
        def normed(y, name, stride=1):
            return F.instance_norm(self.conv(y, name, stride), eps=1e-5)
        x = F.relu(normed(x, "feat_encoder.conv1", 2))
        for layer in (1, 2, 3):
            for b in (0, 1):
                p, stride = f"feat_encoder.layer{layer}.{b}", 2 if layer > 1 and b == 0 else 1
                y = F.relu(normed(x, p + ".conv1"))
                y = F.relu(normed(y, p + ".conv2", stride))
                y = F.relu(normed(y, p + ".conv3"))
                x = F.relu((normed(x, p + ".downsample.0", 2) if stride == 2 else x) + y)
        return self.conv(x, "feat_encoder.conv2")

    def pyramid(self, x):
        levels = []
        for i in range(4):
            x = self.cp(self.cp(x, f"encoder.pyramid{i + 1}.0", 2), f"encoder.pyramid{i + 1}.1")
            levels.append(x)
        return levels

    def decoder(self, x, stage):
        p = f"decoder{stage}.convblock"

        def tail(y, name):
            return torch.cat([y[:, :-20], self.cp(y[:, -20:], name)], 1)
        y = self.cp(x, p + ".0")
        a = tail(self.cp(y, p + ".1.conv1"), p + ".1.conv2")
        b = tail(self.cp(a, p + ".1.conv3"), p + ".1.conv4")
        y = F.prelu(y + self.conv(b, p + ".1.conv5"), self.t[p + ".1.prelu.weight"])
        return F.conv_transpose2d(y, self.t[p + ".2.weight"], self.t[p + ".2.bias"], 2, 1)

    def lookup(self, levels, centres, radius=3):
        h, w = centres.shape[2:]
        offsets = torch.arange(-radius, radius + 1).float()
        window = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij"), -1)[None]  # x varies slowest
        found = []
        for i, level in enumerate(levels):
            points = centres.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) / 2 ** i + window
            found.append(sampled(level, points, "zeros").view(1, h, w, -1))
        return torch.cat(found, -1).permute(0, 3, 1, 2)

    def update(self, stage, volumes, feature, flows):
        u, d = f"update{stage}", 2 ** (4 - stage)
        small = resize(flows, 1 / d) / d
        base = positions(*small.shape[2:])
        c = torch.cat([self.lookup(volumes[0], base + 2 * small[:, 2:]), self.lookup(volumes[1], base + 2 * small[:, :2])], 1)
        a = self.leaky(c, u + ".convc1")
        b = self.leaky(self.leaky(small, u + ".convf1"), u + ".convf2")
        m = torch.cat([self.leaky(torch.cat([a, b], 1), u + ".conv"), small, resize(feature, 1 / d)], 1)
        g = self.conv(self.leaky(m, u + ".gru.0"), u + ".gru.2")
        feature = feature + resize(self.conv(self.leaky(g, u + ".feat_head.0"), u + ".feat_head.2"), d)
        return feature, flows + d * resize(self.conv(self.leaky(g, u + ".flow_head.0"), u + ".flow_head.2"), d)

    def predict(self, first, second):
        """[1,3,H,W] in 0 … 1, sides multiples of 16."""
        mean = torch.cat([first, second]).double().mean().float()
        i0, i1 = first - mean, second - mean
        f0, f1 = self.features(i0), self.features(i1)
        p0, p1 = self.pyramid(i0), self.pyramid(i1)
        h, w = f0.shape[2:]
        volume = f0.view(FEATURES, -1).T @ f1.view(FEATURES, -1) / FEATURES ** 0.5
        volumes = []
        for v in (volume, volume.T.contiguous()):
            levels = [v.view(h * w, 1, h, w)]
            for _ in range(3):
                levels.append(F.avg_pool2d(levels[-1], 2, 2))
            volumes.append(levels)
        out = self.decoder(torch.cat([p0[3], p1[3], torch.full_like(p0[3][:, :1], 0.5)], 1), 4)
        flows, feature = out[:, :4], out[:, 4:]
        feature, flows = self.update(4, volumes, feature, flows)
        for stage in (3, 2):
            x = torch.cat([feature, warp(p0[stage - 1], flows[:, :2]), warp(p1[stage - 1], flows[:, 2:]), flows], 1)
            out = self.decoder(x, stage)
            flows, feature = out[:, :4] + 2 * resize(flows, 2), out[:, 4:]
            feature, flows = self.update(stage, volumes, feature, flows)
        x = torch.cat([feature, warp(p0[0], flows[:, :2]), warp(p1[0], flows[:, 2:]), flows], 1)
        out, base = self.decoder(x, 1), 2 * resize(flows, 2)
        candidates = []
        for k in range(3):
            flow0, flow1 = out[:, 2 * k:2 * k + 2] + base[:, :2], out[:, 6 + 2 * k:8 + 2 * k] + base[:, 2:]
            m = torch.sigmoid(out[:, 12 + k:13 + k])
            candidates.append(m * warp(i0, flow0) + (1 - m) * warp(i1, flow1) + mean + out[:, 15 + 3 * k:18 + 3 * k])
        x = torch.cat(candidates, 1)
        comb = self.conv(F.prelu(self.conv(x, "comb_block.0"), self.t["comb_block.1.weight"]), "comb_block.2")
        return (torch.stack(candidates).mean(0) + comb).clamp(0, 1)

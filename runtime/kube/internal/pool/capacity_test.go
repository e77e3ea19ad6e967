package pool

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

func drawLimits(t *rapid.T) limits {
	l := limits{poolMax: rapid.IntRange(0, 60).Draw(t, "poolMax")}
	l.bufferMax = rapid.IntRange(0, l.poolMax).Draw(t, "bufferMax")
	l.bufferMin = rapid.IntRange(0, l.bufferMax).Draw(t, "bufferMin")
	l.poolMin = rapid.IntRange(0, l.poolMax).Draw(t, "poolMin")
	l.starting = rapid.IntRange(1, 60).Draw(t, "starting")
	l.missing = intstr.FromInt32(int32(rapid.IntRange(1, 10).Draw(t, "missing")))
	return l
}

func drawPodCounts(t *rapid.T) podCounts {
	small := rapid.IntRange(0, 40)
	c := podCounts{
		ready: small.Draw(t, "ready"), starting: small.Draw(t, "starting"),
		recycling: small.Draw(t, "recycling"),
		allocated: small.Draw(t, "allocated"), leaving: small.Draw(t, "leaving"),
		want: rapid.IntRange(0, 100).Draw(t, "want"),
	}
	c.stale = rapid.IntRange(0, c.ready).Draw(t, "stale")
	return c
}

// TestDecideKeepsLimits: whatever a pool is like, no decision goes beyond a limit.
func TestDecideKeepsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, c := drawLimits(t), drawPodCounts(t)
		d := decide(l, c)
		switch {
		case d.make < 0 || d.remove < 0 || d.replace < 0:
			t.Fatalf("%+v: negative", d)
		case d.make > 0 && d.remove > 0, d.remove > 0 && d.replace > 0:
			t.Fatalf("%+v: makes and removes", d)
		case d.make > 0 && c.total()+d.make > l.poolMax:
			t.Fatalf("%+v: more than poolMax", d)
		case d.make > 0 && c.starting+d.make > l.starting:
			t.Fatalf("%+v: too many on their way", d)
		case d.remove > c.ready+c.starting:
			t.Fatalf("%+v: removes what cannot be removed", d)
		case d.replace > c.stale:
			t.Fatalf("%+v: replaces what is not stale", d)
		}
		waiting := c.ready + c.starting + c.recycling
		if d.remove > 0 && waiting-d.remove+c.allocated < min(l.poolMin, l.poolMax) {
			t.Fatalf("%+v: below poolMin", d)
		}
		if d.remove > 0 && waiting-d.remove < min(l.bufferMax+c.want, l.poolMax-c.allocated) {
			t.Fatalf("%+v: removes what is needed", d)
		}
		if want := min(l.bufferMin+c.want, l.poolMax-c.allocated); waiting < want &&
			c.leaving == 0 && c.starting < l.starting && d.make == 0 {
			t.Fatalf("%+v: %d wait, %d are needed, and none is made", d, waiting, want)
		}
	})
}

// TestDecideComesToRest: when everything that was decided happens, a pool comes to where nothing is
// left to do, with a full buffer, everything from the present template, and without ever having
// fewer ready pods than the update strategy allows.
func TestDecideComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, c := drawLimits(t), drawPodCounts(t)
		for range 1000 {
			d := decide(l, c)
			if (d == decision{}) && c.starting+c.recycling+c.leaving == 0 {
				waiting := c.ready
				free := max(l.poolMax-c.allocated, 0)
				if waiting < min(max(l.bufferMin+c.want, l.poolMin-c.allocated), free) ||
					waiting > min(max(l.bufferMax+c.want, l.poolMin-c.allocated), free) {
					t.Fatalf("at rest with %d waiting: %+v %+v", waiting, l, c)
				}
				if c.stale > 0 {
					t.Fatalf("at rest with stale pods: %+v %+v", l, c)
				}
				return
			}
			// A surplus goes in the order of view: those on their way, the stale ones, the others.
			n := min(d.remove, c.starting)
			c.starting -= n
			c.stale -= min(d.remove-n, c.stale)
			c.ready -= d.remove - n
			c.ready -= d.replace
			c.stale -= d.replace
			c.leaving += d.remove + d.replace
			c.starting += d.make
			switch rapid.IntRange(0, 2).Draw(t, "next") { // what happens next in the cluster
			case 0:
				c.ready += c.starting
				c.starting = 0
			case 1:
				c.leaving = 0
			case 2:
				c.ready += c.recycling + c.starting
				c.leaving, c.recycling, c.starting = 0, 0, 0
			}
		}
		t.Fatalf("never at rest: %+v %+v", l, c)
	})
}

func TestShare(t *testing.T) {
	for _, test := range []struct {
		value string
		of    int
		want  int
	}{{"25%", 10, 3}, {"100%", 7, 7}, {"0%", 7, 1}, {"1%", 7, 1}, {"5", 7, 5}, {"0", 7, 1},
		{"nonsense", 7, 1}} {
		if got := share(intstr.Parse(test.value), test.of); got != test.want {
			t.Errorf("share(%s, %d) = %d, want %d", test.value, test.of, got, test.want)
		}
	}
}

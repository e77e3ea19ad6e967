package lifecycle_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sandbox.internal/server/lifecycle"
)

func TestResources(t *testing.T) {
	for _, test := range []struct {
		key, text string
		want      lifecycle.Limits
	}{
		{"cpu", "100m", lifecycle.Limits{NanoCPUs: 100_000_000}},
		{"cpu", "0.5", lifecycle.Limits{NanoCPUs: 500_000_000}},
		{"cpu", "1", lifecycle.Limits{NanoCPUs: 1_000_000_000}},
		{"cpu", "10m", lifecycle.Limits{NanoCPUs: 10_000_000}},
		{"cpu", "0.01", lifecycle.Limits{NanoCPUs: 10_000_000}},
		{"cpu", "99.9", lifecycle.Limits{NanoCPUs: 99_900_000_000}},
		{"cpu", "128000m", lifecycle.Limits{NanoCPUs: 128_000_000_000}},
		{"memory", "128Mi", lifecycle.Limits{MemoryBytes: 128 << 20}},
		{"memory", "1Gi", lifecycle.Limits{MemoryBytes: 1 << 30}},
		{"memory", "1.5Gi", lifecycle.Limits{MemoryBytes: 3 << 29}},
		{"memory", "1Ti", lifecycle.Limits{MemoryBytes: 1 << 40}},
		{"memory", "16384Ki", lifecycle.Limits{MemoryBytes: 16 << 20}},
		{"memory", "17000k", lifecycle.Limits{MemoryBytes: 17_000_000}},
		{"memory", "512M", lifecycle.Limits{MemoryBytes: 512_000_000}},
		{"memory", "1G", lifecycle.Limits{MemoryBytes: 1_000_000_000}},
		{"memory", "1T", lifecycle.Limits{MemoryBytes: 1_000_000_000_000}},
		{"gpu", "1", lifecycle.Limits{GPUs: 1}},
		{"gpu", "8", lifecycle.Limits{GPUs: 8}},
		{"gpu", "all", lifecycle.Limits{GPUs: lifecycle.AllGPUs}},
	} {
		t.Run(test.key+" "+test.text, func(t *testing.T) {
			got, err := lifecycle.ResourceLimits{test.key: test.text}.Parse()
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
	if got, err := (lifecycle.ResourceLimits)(nil).Parse(); err != nil || got != (lifecycle.Limits{}) {
		t.Errorf("no limits: got %+v, %v", got, err)
	}
}

func TestResourcesInvalid(t *testing.T) {
	for _, test := range []struct{ key, text, rule string }{
		{"cpu", "", "write 500m, 0.5 or 1"},
		{"cpu", "one", "write 500m, 0.5 or 1"},
		{"cpu", "-1", "write 500m, 0.5 or 1"},
		{"cpu", "+1", "write 500m, 0.5 or 1"},
		{"cpu", "1e3", "write 500m, 0.5 or 1"},
		{"cpu", "1.", "write 500m, 0.5 or 1"},
		{"cpu", ".5", "write 500m, 0.5 or 1"},
		{"cpu", "1 ", "write 500m, 0.5 or 1"},
		{"cpu", "1\n", "write 500m, 0.5 or 1"},
		{"cpu", "500M", "write 500m, 0.5 or 1"},
		{"cpu", "500", "write 500m"},
		{"cpu", "100", "write 100m"},
		{"cpu", "0", "at least 10m"},
		{"cpu", "9m", "at least 10m"},
		{"cpu", "99999999999999999999m", "too large"},
		{"cpu", "0." + strings.Repeat("1", 1_000_000), "write 500m, 0.5 or 1"},
		{"memory", "", "write 512Mi or 1Gi"},
		{"memory", "512", "write 512Mi or 1Gi"},
		{"memory", "512mi", "write 512Mi or 1Gi"},
		{"memory", "512m", "write 512Mi or 1Gi"},
		{"memory", "512MB", "write 512Mi or 1Gi"},
		{"memory", "512K", "write 512Mi or 1Gi"},
		{"memory", "-1Gi", "write 512Mi or 1Gi"},
		{"memory", "1 Gi", "write 512Mi or 1Gi"},
		{"memory", strings.Repeat("1", 1_000_000) + "Gi", "write 512Mi or 1Gi"},
		{"memory", "15Mi", "at least 16Mi"},
		{"memory", "0Gi", "at least 16Mi"},
		{"memory", "8388608Ti", "too large"},
		{"gpu", "", "write 1"},
		{"gpu", "0", "write 1"},
		{"gpu", "-1", "write 1"},
		{"gpu", "+1", "write 1"},
		{"gpu", "1.5", "write 1"},
		{"gpu", "All", "write 1"},
		{"disk", "1Gi", "cpu, memory and gpu"},
		{"CPU", "1", "cpu, memory and gpu"},
	} {
		t.Run(fmt.Sprintf("%s %.20s", test.key, test.text), func(t *testing.T) {
			got, err := lifecycle.ResourceLimits{"memory": "1Gi", test.key: test.text}.Parse()
			expectInvalid(t, err, "resourceLimits", test.key, test.rule)
			if got != (lifecycle.Limits{}) {
				t.Errorf("got limits %+v beside the error", got)
			}
		})
	}
}

// TestResourcesAnyText shows that no text makes the parser panic, and that what it accepts is
// within its own rules.
func TestResourcesAnyText(t *testing.T) {
	number := rapid.StringMatching(`[+-]?[0-9]{0,25}(\.[0-9]{0,12})?(m|k|M|G|T|Ki|Mi|Gi|Ti|x)?`)
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom([]string{"cpu", "memory", "gpu", ""}).Draw(t, "key")
		text := rapid.OneOf(number, rapid.String()).Draw(t, "text")
		limits, err := lifecycle.ResourceLimits{key: text}.Parse()
		var failure *lifecycle.Error
		switch {
		case errors.As(err, &failure):
			if failure.Kind != lifecycle.KindInvalid || !strings.HasPrefix(failure.Message, "resourceLimits") {
				t.Fatalf("got error %+v", failure)
			}
		case err != nil:
			t.Fatalf("got error %v of another type", err)
		case key == "cpu" && limits.NanoCPUs < 10_000_000,
			key == "memory" && limits.MemoryBytes < 16<<20,
			key == "gpu" && limits.GPUs < 1 && limits.GPUs != lifecycle.AllGPUs:
			t.Fatalf("accepted %+v", limits)
		}
	})
}

func TestResourcesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		milli := rapid.Int64Range(10, 99_999).Draw(t, "milli")
		mebi := rapid.Int64Range(16, 1<<22).Draw(t, "mebi")
		gpus := rapid.IntRange(1, 1000).Draw(t, "gpus")
		want := lifecycle.Limits{NanoCPUs: milli * 1_000_000, MemoryBytes: mebi << 20, GPUs: gpus}
		for _, cpu := range []string{fmt.Sprintf("%dm", milli), fmt.Sprintf("%d.%03d", milli/1000, milli%1000)} {
			for _, memory := range []string{fmt.Sprintf("%dMi", mebi), fmt.Sprintf("%dKi", mebi<<10)} {
				got, err := lifecycle.ResourceLimits{"cpu": cpu, "memory": memory, "gpu": fmt.Sprint(gpus)}.Parse()
				if err != nil || got != want {
					t.Fatalf("cpu %s, memory %s: got %+v, %v; want %+v", cpu, memory, got, err, want)
				}
			}
		}
	})
}

package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/bench/measure"
)

// TestReportWithAFloorOfNothing: a server that uses no processor time at all is a floor without a
// ratio.
func TestReportWithAFloorOfNothing(t *testing.T) {
	var p measure.Pair
	p.Ours.Add(0.02)
	p.Floor.Add(0)
	cpu := measure.Row{Name: "egress-cpu", Unit: measure.Percent, Target: measure.Ours(0.5)}
	directory := t.TempDir()
	if err := New([]measure.Result{{Row: cpu, Pair: p}}, 0, Load{}).Write(directory); err != nil {
		t.Fatal(err)
	}
	encoded, err := os.ReadFile(filepath.Join(directory, "latest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var read Report
	if err := json.Unmarshal(encoded, &read); err != nil {
		t.Fatal(err)
	}
	if len(read.Rows) != 1 || read.Rows[0].Ratio != nil || read.Rows[0].Ours.Median != 0.02 ||
		!read.Rows[0].Target.Met {
		t.Errorf("%s", encoded)
	}
	table, err := os.ReadFile(filepath.Join(directory, "latest.md"))
	if err != nil ||
		!strings.Contains(string(table), "| egress-cpu | % | 0.02 | 0.02 | 0 | 0 | - | 100% |") {
		t.Errorf("%v:\n%s", err, table)
	}
}

// TestReportOfRequests: the p99 is of single requests, whatever the unit of the row's rounds, and
// the file has the figures it is made of.
func TestReportOfRequests(t *testing.T) {
	p := measure.Pair{Ours: sampleOf(0, 900, 1000), Floor: sampleOf(0, 2000, 2000)}
	for i := range 1999 {
		p.Ours.Requests = append(p.Ours.Requests, float64(1999-i))
		p.Floor.Requests = append(p.Floor.Requests, 1)
	}
	read := reported(t, measure.Row{Name: "get", Unit: measure.PerSecond, Target: measure.Ratio(0.6)}, p).Rows[0]
	if read.Ours.P99 != 1980 || read.Ours.P99Unit != measure.Milliseconds || read.Ours.P99Of != 1999 {
		t.Errorf("p99 %v %s of %d", read.Ours.P99, read.Ours.P99Unit, read.Ours.P99Of)
	}
	if kept := read.Ours.Requests; len(kept) != keptSamples || kept[0] != 1 ||
		kept[len(kept)-1] != 1999 {
		t.Errorf("%d requests are kept, from %v to %v", len(kept), kept[0], kept[len(kept)-1])
	}
	if !slices.Equal(read.Ours.Values, []float64{900, 1000}) {
		t.Errorf("values %v", read.Ours.Values)
	}
}

// reported writes a run of one row and reads it again.
func reported(t *testing.T, of measure.Row, p measure.Pair) Report {
	t.Helper()
	directory := t.TempDir()
	if err := New([]measure.Result{{Row: of, Pair: p}}, 0, Load{}).Write(directory); err != nil {
		t.Fatal(err)
	}
	encoded, err := os.ReadFile(filepath.Join(directory, latestFile))
	if err != nil {
		t.Fatal(err)
	}
	var read Report
	if err := json.Unmarshal(encoded, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

// command is a row.
var command = measure.Row{Name: "command", Floor: "a floor", Unit: measure.Milliseconds, Target: measure.Ratio(1.5)}

func TestNoise(t *testing.T) {
	for name, tc := range map[string]struct {
		ours []float64
		want bool
	}{
		"far below the target":  {[]float64{1, 1.01, 0.99, 1, 1, 1.01}, false},
		"around the target":     {[]float64{1.4, 1.6, 1.45, 1.55, 1.3, 1.7}, true},
		"far above the target":  {[]float64{4, 4.1, 3.9, 4, 4, 4.1}, false},
		"one wild value is not": {[]float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 9}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := measure.Pair{Ours: sampleOf(0, tc.ours...)}
			for range tc.ours {
				p.Floor.Add(1)
			}
			read := reported(t, command, p).Rows[0].Target
			if read.InNoise != tc.want {
				t.Errorf("in noise %v, from %v to %v", read.InNoise, *read.Low, *read.High)
			}
		})
	}
}

// TestNoiseOfBursts: what was measured at once is drawn at once, and too few rounds say nothing
// about their noise.
func TestNoiseOfBursts(t *testing.T) {
	rounds := func(count int, medians ...float64) measure.Pair {
		var p measure.Pair
		for _, median := range medians {
			if count == 1 {
				p.Ours.Add(median)
			} else {
				p.Ours.AddBurst(sampleOf(0, slices.Repeat([]float64{median}, count)...).Burst())
			}
			p.Floor.Add(1)
		}
		return p
	}
	for name, tc := range map[string]struct {
		pair    measure.Pair
		inNoise bool
		known   bool // the noise
	}{
		"three bursts around the target": {rounds(100, 1, 2, 2.1), true, true},
		"three bursts far below":         {rounds(100, 1, 1.1, 1.2), false, true},
		"two bursts around the target":   {rounds(100, 1.4, 1.6), false, false},
		"one burst that includes the target": {measure.Pair{
			Ours: sampleOf(0, 1.4, 1.5, 1.6).InOne(), Floor: sampleOf(0, 1, 1, 1)}, false, false},
		"three values around the target": {rounds(1, 1.4, 1.5, 1.6), true, true},
		"two values around the target":   {rounds(1, 1.4, 1.6), false, false},
		"one value that is the target":   {rounds(1, 1.5), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			read := reported(t, command, tc.pair).Rows[0].Target
			if read.InNoise != tc.inNoise || (read.Low != nil) != tc.known ||
				(read.High != nil) != tc.known {
				t.Errorf("%+v", read)
			}
		})
	}
}

// TestBurstsKeepTheirFailures: a round is drawn with the attempts that failed in it, so that no run
// that is drawn has more successes than attempts.
func TestBurstsKeepTheirFailures(t *testing.T) {
	var s measure.Sample
	s.AddBurst(sampleOf(0, 1, 1, 1, 1).Burst())
	s.AddBurst(sampleOf(3, 1).Burst())
	if s.Attempts != 8 || s.Success() != 5.0/8 {
		t.Errorf("%d attempts, of which %v succeeded", s.Attempts, s.Success())
	}
	for want, rounds := range map[float64][]int{1: {0, 0}, 0.25: {1, 1}} {
		if drawn := s.Of(rounds); drawn.Attempts != 8 || drawn.Success() != want {
			t.Errorf("rounds %v: %d attempts, of which %v succeeded", rounds, drawn.Attempts,
				drawn.Success())
		}
	}
}

// TestHistory: the picture of a run shows earlier ones, but for rows that had another floor then.
func TestHistory(t *testing.T) {
	directory := t.TempDir()
	for _, took := range []float64{2, 3, 4} {
		p := measure.Pair{Ours: sampleOf(0, took), Floor: sampleOf(0, 1)}
		if err := New([]measure.Result{{Row: command, Pair: p}}, 0, Load{}).Write(directory); err != nil {
			t.Fatal(err)
		}
	}
	runs, err := readHistory(filepath.Join(directory, historyFile))
	if err != nil || len(runs) != 3 {
		t.Fatalf("%d runs: %v", len(runs), err)
	}
	row := rowResults{Name: command.Name, Floor: runs[0].Rows[command.Name].Floor}
	if got := row.earlier(runs); !slices.Equal(got, []float64{2, 3, 4}) {
		t.Errorf("earlier ratios %v", got)
	}
	row.Floor = "another one"
	if got := row.earlier(runs); len(got) != 0 {
		t.Errorf("earlier ratios %v to another floor", got)
	}
	picture, err := os.ReadFile(filepath.Join(directory, pictureFile))
	if err != nil {
		t.Fatal(err)
	}
	decoder, points := xml.NewDecoder(bytes.NewReader(picture)), 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, picture)
		}
		if element, is := token.(xml.StartElement); is && element.Name.Local == "polyline" {
			points = len(strings.Fields(element.Attr[0].Value))
		}
	}
	if points != 3 {
		t.Errorf("the line has %d points:\n%s", points, picture)
	}
}

// sampleOf returns a sample of these values, and of as many attempts that failed.
func sampleOf(failed int, values ...float64) measure.Sample {
	var s measure.Sample
	for _, value := range values {
		s.Add(value)
	}
	s.Attempts += failed
	return s
}

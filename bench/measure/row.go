package measure

import (
	"fmt"
	"strconv"
)

// Row is one line of the report.
type Row struct {
	Name   string // for --only, and the key in the JSON
	What   string
	Floor  string
	Unit   Unit
	Target target
	Gate   bool   // the row may get a baseline: it takes seconds, and its floor does the same kind of work
	Peer   string // names another program that does this for its users and is measured, too; usually empty
}

// Unit is what the values of a row are counted in.
type Unit string

const (
	Milliseconds Unit = "ms"
	Mebibytes    Unit = "MiB"
	Percent      Unit = "%"
	PerSecond    Unit = "/s"
	MebiPerSec   Unit = "MiB/s"
)

// Better returns which values of a unit are good: high rates, and low times and sizes.
func (u Unit) Better() Direction {
	if u == PerSecond || u == MebiPerSec {
		return Higher
	}
	return Lower
}

// target is what a row is held to: at most a limit where lower is better, and at least the limit
// where higher is.
type target struct {
	Of    Compared
	Limit float64
}

// Compared says which figure of a row a target is about.
type Compared string

const (
	OfRatio          Compared = "ratio"
	ofDifference     Compared = "difference"
	ofOurs           Compared = "ours"
	ofTail           Compared = "p99"
	ofTailDifference Compared = "p99 difference"
)

// Ratio is a target for our figure over the floor's.
func Ratio(limit float64) target { return target{OfRatio, limit} }

// Difference is a target for our figure less the floor's, in the row's unit.
func Difference(limit float64) target { return target{ofDifference, limit} }

// Ours is a target for our own figure.
func Ours(limit float64) target { return target{ofOurs, limit} }

// Tail is a target for the p99 of our attempts.
func Tail(limit float64) target { return target{ofTail, limit} }

// TailDifference is a target for how much the p99 of our attempts is beyond that of the floor's.
func TailDifference(limit float64) target { return target{ofTailDifference, limit} }

// value returns what the target compares.
func (t target) value(p Pair, good Direction) float64 {
	switch t.Of {
	case OfRatio:
		return p.Ratio(good)
	case ofDifference:
		return p.Difference(good)
	case ofTail:
		return p.Ours.tail(good)
	case ofTailDifference:
		return p.Ours.tail(good) - p.Floor.tail(good)
	default:
		return p.Ours.effective(good)
	}
}

// Met reports whether a result is as good as the target.
func (t target) Met(p Pair, good Direction) bool {
	if good == Higher {
		return t.value(p, good) >= t.Limit
	}
	return t.value(p, good) <= t.Limit
}

// Goal is the target for readers.
func (r Row) Goal() string {
	sign := "≤"
	if r.Unit.Better() == Higher {
		sign = "≥"
	}
	switch r.Target.Of {
	case OfRatio:
		return fmt.Sprintf("%s %s×", sign, Number(r.Target.Limit))
	case ofDifference:
		return fmt.Sprintf("%s +%s %s", sign, Number(r.Target.Limit), r.Unit)
	case ofTail:
		return fmt.Sprintf("p99 %s %s %s", sign, Number(r.Target.Limit), r.Unit)
	default:
		return fmt.Sprintf("%s %s %s", sign, Number(r.Target.Limit), r.Unit)
	}
}

// Rounded keeps four digits: more would be noise.
func Rounded(value float64) float64 {
	short, err := strconv.ParseFloat(strconv.FormatFloat(value, 'g', 4, 64), 64)
	if err != nil {
		return value
	}
	return short
}

// Number prints a figure to three digits, and large ones in full.
func Number(value float64) string {
	if value >= 1000 || value <= -1000 {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strconv.FormatFloat(value, 'g', 3, 64)
}

package main

import "fmt"

// row is one line of the report.
type row struct {
	name   string // for --only, and the key in the JSON
	what   string
	floor  string
	unit   unit
	target target
	gate   bool   // the row may get a baseline: it takes seconds, and its floor does the same kind of work
	peer   string // what another program does for its users that is measured, too; usually empty
}

// unit is what the values of a row are counted in.
type unit string

const (
	milliseconds unit = "ms"
	mebibytes    unit = "MiB"
	percent      unit = "%"
	perSecond    unit = "/s"
	mebiPerSec   unit = "MiB/s"
)

// better returns which values of a unit are good: high rates, and low times and sizes.
func (u unit) better() direction {
	if u == perSecond || u == mebiPerSec {
		return higher
	}
	return lower
}

// target is what a row is held to: at most a limit where lower is better, and at least the limit
// where higher is.
type target struct {
	of    compared
	limit float64
}

// compared says which figure of a row a target is about.
type compared string

const (
	ofRatio          compared = "ratio"
	ofDifference     compared = "difference"
	ofOurs           compared = "ours"
	ofTail           compared = "p99"
	ofTailDifference compared = "p99 difference"
)

// ratio is a target for our figure over the floor's.
func ratio(limit float64) target { return target{ofRatio, limit} }

// difference is a target for our figure less the floor's, in the row's unit.
func difference(limit float64) target { return target{ofDifference, limit} }

// ours is a target for our own figure.
func ours(limit float64) target { return target{ofOurs, limit} }

// tail is a target for the p99 of our attempts.
func tail(limit float64) target { return target{ofTail, limit} }

// tailDifference is a target for how much the p99 of our attempts is beyond that of the floor's.
func tailDifference(limit float64) target { return target{ofTailDifference, limit} }

// value returns what the target compares.
func (t target) value(p pair, good direction) float64 {
	switch t.of {
	case ofRatio:
		return p.ratio(good)
	case ofDifference:
		return p.difference(good)
	case ofTail:
		return p.ours.tail(good)
	case ofTailDifference:
		return p.ours.tail(good) - p.floor.tail(good)
	default:
		return p.ours.effective(good)
	}
}

// met reports whether a result is as good as the target.
func (t target) met(p pair, good direction) bool {
	if good == higher {
		return t.value(p, good) >= t.limit
	}
	return t.value(p, good) <= t.limit
}

// goal is the target for readers.
func (r row) goal() string {
	sign := "≤"
	if r.unit.better() == higher {
		sign = "≥"
	}
	switch r.target.of {
	case ofRatio:
		return fmt.Sprintf("%s %s×", sign, number(r.target.limit))
	case ofDifference:
		return fmt.Sprintf("%s +%s %s", sign, number(r.target.limit), r.unit)
	case ofTail:
		return fmt.Sprintf("p99 %s %s %s", sign, number(r.target.limit), r.unit)
	default:
		return fmt.Sprintf("%s %s %s", sign, number(r.target.limit), r.unit)
	}
}

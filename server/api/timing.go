package api

import (
	"strconv"
	"strings"
	"time"

	"sandbox.internal/server/lifecycle"
)

// serverTiming collects the value of a Server-Timing header.
type serverTiming struct{ metrics []string }

func (t *serverTiming) add(name string, took time.Duration) {
	milliseconds := strconv.FormatFloat(max(0, took.Seconds()*1000), 'f', 3, 64)
	t.metrics = append(t.metrics, name+";dur="+milliseconds)
}

// addStages adds what each stage took since the one before.
func (t *serverTiming) addStages(stages []lifecycle.StageTime) {
	for i, stage := range stages {
		if i > 0 {
			t.add(string(stage.Stage), stage.At.Sub(stages[i-1].At))
		}
	}
}

func (t *serverTiming) header() *string {
	value := strings.Join(t.metrics, ", ")
	return &value
}

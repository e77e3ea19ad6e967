package docker

import (
	"fmt"

	"github.com/docker/docker/pkg/jsonmessage"
	"github.com/docker/go-units"
)

// pullMeter sums up the engine's messages about single layers in one sentence about the image.
type pullMeter struct {
	name   string
	report func(string)
	layers map[string]*layerProgress
}

type layerProgress struct {
	done           bool
	current, total int64
}

func newPullMeter(name string, report func(string)) *pullMeter {
	return &pullMeter{name: name, report: report, layers: map[string]*layerProgress{}}
}

func (m *pullMeter) note(message jsonmessage.JSONMessage) {
	switch message.Status {
	case "Pulling fs layer", "Waiting":
		m.layer(message.ID)
	case "Downloading":
		layer := m.layer(message.ID)
		if message.Progress != nil {
			layer.current, layer.total = message.Progress.Current, message.Progress.Total
		}
	case "Download complete":
		layer := m.layer(message.ID)
		layer.current = layer.total
	case "Pull complete", "Already exists":
		layer := m.layer(message.ID)
		layer.done, layer.current = true, layer.total
	default:
		return
	}
	m.report(m.sentence())
}

func (m *pullMeter) layer(id string) *layerProgress {
	layer, ok := m.layers[id]
	if !ok {
		layer = &layerProgress{}
		m.layers[id] = layer
	}
	return layer
}

func (m *pullMeter) sentence() string {
	var done int
	var current, total int64
	for _, layer := range m.layers {
		if layer.done {
			done++
		}
		current += layer.current
		total += layer.total
	}
	s := fmt.Sprintf("pulling %s: %d of %d layers", m.name, done, len(m.layers))
	if total > 0 {
		s += fmt.Sprintf(", %s of %s", units.HumanSize(float64(current)),
			units.HumanSize(float64(total)))
	}
	return s
}

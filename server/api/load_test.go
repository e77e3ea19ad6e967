package api_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/api"
	"sandbox.internal/server/lifecycle"
)

// steady is a machine whose load is always the same.
type steady lifecycle.HostLoad

func (s steady) Sample() (lifecycle.HostLoad, error) { return lifecycle.HostLoad(s), nil }

func idle() (api.LoadSampler, error) { return steady{CPUs: 2}, nil }

func TestHostLoad(t *testing.T) {
	load := steady{CPUs: 2, CPUUsedPercent: 37.5, MemoryTotalBytes: 100, MemoryUsedBytes: 50,
		DiskTotalBytes: 1000, DiskUsedBytes: 10}
	s := serveWith(t, api.Options{Backend: newBackend(),
		HostLoad: func() (api.LoadSampler, error) { return load, nil }})
	response, err := s.client.StreamHostLoad(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for range 2 {
		var got gen.HostLoad
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &got); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
		if got.Timestamp.IsZero() || got.CPUCount != 2 || got.CPUUsedPercent != 37.5 ||
			got.MemoryTotalBytes != 100 || got.MemoryUsedBytes != 50 || got.DiskTotalBytes != 1000 ||
			got.DiskUsedBytes != 10 {
			t.Errorf("%+v, %v", got, lines.Err())
		}
	}
}

func TestNoHostLoadOfOtherMachines(t *testing.T) {
	s := serveWith(t, api.Options{Backend: newBackend()})
	if got := statusOf(t, s, http.MethodGet, "/v1/host/load", "", ""); got != http.StatusNotImplemented {
		t.Errorf("status %d", got)
	}
}

package pool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
	"sandbox.internal/test/cluster"
)

// etcd is the store behind the API server of a cluster, spoken to directly: what a write costs at
// least.
type etcd struct {
	url    string
	client *http.Client
}

// putSize is in bytes: about what a BatchSandbox with a hundred names of pods takes.
const putSize = 4 << 10

func openEtcd(c *cluster.Cluster) (etcd, error) {
	settings, err := os.ReadFile(filepath.Join(c.Directory, "settings"))
	if err != nil {
		return etcd{}, err
	}
	for line := range strings.Lines(string(settings)) {
		for word := range strings.FieldsSeq(line) {
			if port, found := strings.CutPrefix(word, "port_etcd="); found {
				return etcd{"http://" + rig.Joined("127.0.0.1", atoi(port)),
					&http.Client{Transport: &http.Transport{}}}, nil
			}
		}
	}
	return etcd{}, fmt.Errorf("the settings of the cluster name no port of etcd")
}

// atoi is 0 for what is no number; a connection to port 0 then fails and says so.
func atoi(text string) int {
	number, _ := strconv.Atoi(strings.Trim(text, `'"`))
	return number
}

// times puts a value as often as that, one after the other, and returns what it took in
// milliseconds.
func (e etcd) times(ctx context.Context, count int) (float64, error) {
	value := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), putSize))
	body, err := json.Marshal(
		map[string]string{"key": base64.StdEncoding.EncodeToString([]byte("/bench")),
			"value": value})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for range count {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v3/kv/put",
			bytes.NewReader(body))
		if err != nil {
			return 0, err
		}
		response, err := rig.Send(e.client, request, http.StatusOK)
		if err != nil {
			return 0, err
		}
		if err := rig.Drain(response); err != nil {
			return 0, err
		}
	}
	return measure.Elapsed(began), nil
}

// writes is how many changes of batches, pools and pods the API server has taken since its start.
func (k *kubernetes) writes(ctx context.Context) (int, error) {
	response, err := k.send(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	sum, lines := 0.0, bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if name, labels, found := strings.Cut(line, "{"); found &&
			name == "apiserver_request_total" && isWrite(labels) {
			value, err := strconv.ParseFloat(line[strings.LastIndexByte(strings.TrimSpace(line),
				' ')+1:len(line)-1], 64)
			if err != nil {
				return 0, err
			}
			sum += value
		}
		if err == io.EOF {
			return int(sum), nil
		}
		if err != nil {
			return 0, err
		}
	}
}

func isWrite(labels string) bool {
	return has(labels, "resource", "batchsandboxes", "pools", "pods") &&
		has(labels, "verb", "POST", "PUT", "PATCH", "APPLY", "DELETE")
}

func has(labels, name string, values ...string) bool {
	for _, value := range values {
		if strings.Contains(labels, name+`="`+value+`"`) {
			return true
		}
	}
	return false
}

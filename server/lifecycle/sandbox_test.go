package lifecycle_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
)

func fullRecord() lifecycle.Record {
	return lifecycle.Record{
		Sandbox: lifecycle.Sandbox{
			Limits: lifecycle.Limits{NanoCPUs: 1, MemoryBytes: 1, GPUs: 1},
			ID:     "id", Image: "image", Owner: "owner", CreatedAt: time.Unix(1, 0).UTC(), ExpiresAt: time.Unix(2, 0).UTC(),
			Status:   lifecycle.Status{State: lifecycle.StateRunning, Reason: lifecycle.ReasonContainerRunning, Message: "m", LastTransitionAt: time.Unix(1, 0).UTC(), ExitCode: new(1)},
			Metadata: map[string]string{"name": "box"}, Entrypoint: []string{"sleep", "60"},
			Lifecycle:  &lifecycle.Lifecycle{OnIdle: lifecycle.OnIdlePause, Idle: 1, Hibernate: 1, OnTimeout: lifecycle.OnTimeoutPause, AutoResume: true},
			Extensions: []byte(`{"a": 1}`), Stages: []lifecycle.StageTime{{Stage: lifecycle.StageAccepted, At: time.Unix(1, 0).UTC()}},
		},
		Spec:      fullSpec(),
		NeedsAuth: true, Token: "token", Removed: true, Port: 1, Sidecar: fullSidecar(), StopTime: time.Second, RetainUntil: time.Unix(3, 0).UTC(),
		MaxTimeout: time.Hour, TimedOut: true, WakeAt: time.Unix(4, 0).UTC(),
	}
}

func fullSpec() lifecycle.Spec {
	return lifecycle.Spec{
		Image:         "image",
		Auth:          &lifecycle.ImageAuth{Username: "user", Password: "password"},
		Timeout:       time.Hour,
		Resources:     lifecycle.ResourceLimits{"cpu": "1"},
		Requests:      lifecycle.ResourceLimits{"memory": "1Gi"},
		Entrypoint:    []string{"sleep", "60"},
		Env:           map[string]string{"A": "1"},
		Metadata:      map[string]string{"name": "box"},
		NetworkPolicy: &lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "allow", Target: "example.com"}}},
		Volumes:       []lifecycle.Volume{{Name: "v", MountPath: "/v", HostPath: "/h"}},
		Lifecycle:     &lifecycle.Lifecycle{OnIdle: lifecycle.OnIdlePause, Idle: 1, Hibernate: 1, OnTimeout: lifecycle.OnTimeoutPause, AutoResume: true},
		Extensions:    []byte(`{"a": 1}`),
	}
}

// TestClone changes everything that a clone could share. It walks the types, so a field added later
// is covered as well.
func TestClone(t *testing.T) {
	original := fullRecord()
	clone := original.Clone()
	if !reflect.DeepEqual(clone, original) {
		t.Fatalf("got %+v, want %+v", clone, original)
	}
	scramble(t, reflect.ValueOf(&clone).Elem(), "Record")
	if want := fullRecord(); !reflect.DeepEqual(original, want) {
		t.Errorf("changing the clone changed the original to %+v", original)
	}
	sandbox := original.Sandbox.Clone()
	scramble(t, reflect.ValueOf(&sandbox).Elem(), "Sandbox")
	if want := fullRecord(); !reflect.DeepEqual(original, want) {
		t.Errorf("changing the sandbox's clone changed the original to %+v", original)
	}
}

// scramble overwrites whatever is reachable from the value and fails for a field that fullRecord
// leaves empty.
func scramble(t *testing.T, v reflect.Value, name string) {
	t.Helper()
	if v.IsZero() && v.Kind() != reflect.Bool && v.Kind() != reflect.String {
		t.Fatalf("%s is empty, so this test cannot show whether a clone shares it", name)
	}
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return // immutable
		}
		for i := range v.NumField() {
			scramble(t, v.Field(i), name+"."+v.Type().Field(i).Name)
		}
	case reflect.Pointer:
		scramble(t, v.Elem(), name)
	case reflect.Slice:
		for i := range v.Len() {
			scramble(t, v.Index(i), name)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			v.SetMapIndex(key, reflect.ValueOf("scrambled"))
		}
	case reflect.String:
		v.SetString("scrambled")
	case reflect.Uint8:
		v.SetUint('!')
	}
}

func TestFilterMatch(t *testing.T) {
	owner, nobody := "me", ""
	box := lifecycle.Sandbox{
		Owner: "me", Metadata: map[string]string{"name": "box", "empty": ""}, Status: lifecycle.Status{State: lifecycle.StateRunning},
	}
	for name, test := range map[string]struct {
		filter lifecycle.Filter
		want   bool
	}{
		"zero value":        {lifecycle.Filter{}, true},
		"state":             {lifecycle.Filter{States: []lifecycle.State{"Running"}}, true},
		"one of the states": {lifecycle.Filter{States: []lifecycle.State{"Paused", "Running"}}, true},
		"another state":     {lifecycle.Filter{States: []lifecycle.State{"Paused", "Failed"}}, false},
		"metadata":          {lifecycle.Filter{Metadata: map[string]string{"name": "box"}}, true},
		"all metadata":      {lifecycle.Filter{Metadata: map[string]string{"name": "box", "empty": ""}}, true},
		"one of metadata":   {lifecycle.Filter{Metadata: map[string]string{"name": "box", "empty": "x"}}, false},
		"another value":     {lifecycle.Filter{Metadata: map[string]string{"name": "bo"}}, false},
		"no such key":       {lifecycle.Filter{Metadata: map[string]string{"missing": ""}}, false},
		"owner":             {lifecycle.Filter{Owner: &owner}, true},
		"another owner":     {lifecycle.Filter{Owner: &nobody}, false},
		"everything": {lifecycle.Filter{
			Owner: &owner, Metadata: map[string]string{"name": "box"}, States: []lifecycle.State{"Running"},
		}, true},
		"all but the state": {lifecycle.Filter{
			Owner: &owner, Metadata: map[string]string{"name": "box"}, States: []lifecycle.State{"Paused"},
		}, false},
		"all but metadata": {lifecycle.Filter{
			Owner: &owner, Metadata: map[string]string{"name": "x"}, States: []lifecycle.State{"Running"},
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.filter.Match(&box); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

func TestSpecJSONHasNoCredentials(t *testing.T) {
	data, err := json.Marshal(fullRecord())
	if err != nil {
		t.Fatal(err)
	}
	if text := string(data); strings.Contains(text, "password") || strings.Contains(text, `"user"`) {
		t.Errorf("the JSON of a record contains credentials: %s", text)
	}
}

func fullSidecar() *lifecycle.Sidecar {
	return &lifecycle.Sidecar{Image: "egress", Upstream: "192.0.2.1", Token: "another", Port: 2, Restarts: 3, Silent: true}
}

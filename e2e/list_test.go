package e2e_test

import (
	"net/url"
	"slices"
	"testing"
	"time"

	"sandbox.internal/gen/lifecycle"
)

func TestList(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	if items := s.everything(t); items == nil || len(items) != 0 {
		t.Errorf("a new service lists %v, want an empty array", items)
	}
	tags := []lifecycle.Metadata{
		{"team": "red", "name": "first"},
		{"team": "red", "a=b&c": "50% ü"},
		{"team": "blue"},
		{"team": "blue", "name": "first"},
		{},
	}
	var newest []string // first
	for _, metadata := range tags {
		r := idle()
		r.Metadata = metadata
		newest = slices.Insert(newest, 0, s.create(t, r))
	}
	for _, id := range newest {
		s.await(t, id, "Running")
	}
	s.pause(t, newest[0])
	s.delete(t, newest[1])
	s.await(t, newest[1], "Terminated")

	pick := func(places ...int) []string {
		var list []string
		for _, i := range places {
			list = append(list, newest[i])
		}
		return list
	}
	twice := url.QueryEscape(url.QueryEscape("a=b&c") + "=" + url.QueryEscape("50% ü"))
	for query, want := range map[string][]string{
		"":                                     newest,
		"state=Running":                        pick(2, 3, 4),
		"state=paused&state=TERMINATED":        pick(0, 1),
		"state=Failed":                         nil,
		"metadata=team%3Dred":                  pick(3, 4),
		"metadata=team%3Dred%26name%3Dfirst":   pick(4),
		"metadata=" + twice:                    pick(3),
		"metadata=team%3Dblue&state=Running":   pick(2),
		"metadata=team%3Dgreen":                nil,
		"metadata=name%3Dfirst&pageSize=1":     pick(1),
		"metadata=name%3Dfirst&page=2":         nil,
		"page=2&pageSize=2":                    pick(2, 3),
		"page=3&pageSize=2":                    pick(4),
		"page=4&pageSize=2":                    nil,
		"page=9223372036854775807&pageSize=50": nil,
	} {
		t.Run(query, func(t *testing.T) {
			if got := ids(s.page(t, query).Items); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	for query, want := range map[string]lifecycle.Pagination{
		"":                            {Page: 1, PageSize: 20, TotalItems: 5, TotalPages: 1},
		"pageSize=5":                  {Page: 1, PageSize: 5, TotalItems: 5, TotalPages: 1},
		"pageSize=2":                  {Page: 1, PageSize: 2, TotalItems: 5, TotalPages: 3, HasNextPage: true},
		"pageSize=2&page=2":           {Page: 2, PageSize: 2, TotalItems: 5, TotalPages: 3, HasNextPage: true},
		"pageSize=2&page=3":           {Page: 3, PageSize: 2, TotalItems: 5, TotalPages: 3},
		"pageSize=2&page=7":           {Page: 7, PageSize: 2, TotalItems: 5, TotalPages: 3},
		"pageSize=1000&state=Running": {Page: 1, PageSize: 1000, TotalItems: 3, TotalPages: 1},
		"state=Failed":                {Page: 1, PageSize: 20, TotalItems: 0, TotalPages: 0},
	} {
		t.Run(query, func(t *testing.T) {
			if got := s.page(t, query).Pagination; got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// page lists with a query as it goes over the wire.
func (c *client) page(t *testing.T, query string) lifecycle.SandboxList {
	t.Helper()
	list, err := decode[lifecycle.SandboxList](c.send(t, "GET", "/v1/sandboxes?"+query, ""))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	r := idle()
	r.Timeout = 60
	running, paused := s.running(t, r), s.running(t, r)
	s.pause(t, paused)
	for _, id := range []string{running, paused} {
		expiresAt := s.get(t, id).ExpiresAt
		ended := s.awaitWithin(t, id, "Terminated", 90*time.Second)
		if ended.Status.Reason != "EXPIRED" {
			t.Errorf("the reason of the end is %s", ended.Status.Reason)
		}
		if late := ended.Status.LastTransitionAt.Sub(expiresAt); late < 0 {
			t.Errorf("terminated %v before its expiry", -late)
		}
	}
	if got := s.containers(t); len(got) > 0 {
		t.Errorf("containers are left: %v", got)
	}
}

package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestAppArmorProfiles(t *testing.T) {
	for profile, want := range map[string]corev1.AppArmorProfileType{
		"": "", "unconfined": corev1.AppArmorProfileTypeUnconfined, "mine": corev1.AppArmorProfileTypeLocalhost,
	} {
		c := &Cluster{}
		c.Security.AppArmorProfile = profile
		var got corev1.AppArmorProfile
		if found := c.confinement().AppArmorProfile; found != nil {
			got = *found
		}
		named := got.LocalhostProfile != nil && *got.LocalhostProfile == profile
		if got.Type != want || named != (profile == "mine") {
			t.Errorf("%q is %+v", profile, got)
		}
	}
}

package cluster

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sandbox.internal/server/lifecycle"
)

// TestDaemonWithALogOfItsOwn: the daemon writes all of its log to a file, and only warnings to the
// log of the sandbox.
func TestDaemonWithALogOfItsOwn(t *testing.T) {
	for file, want := range map[string][]string{
		"":               {"/opt/sandbox/execd-init", "--log-level=4", "--"},
		"/tmp/execd.log": {"/opt/sandbox/execd-init", "--"},
	} {
		spec := lifecycle.Spec{Image: "busybox", Entrypoint: []string{"sleep", "60"}, Env: map[string]string{"EXECD_LOG_FILE": file}}
		pod, err := (&Cluster{}).template(spec, lifecycle.RuntimeClass{}, "token", newSecret("id"))
		if err != nil {
			t.Fatal(err)
		}
		if got := pod.Spec.Containers[0].Command; !slices.Equal(got, want) {
			t.Errorf("with the file %q the command is %q", file, got)
		}
	}
}

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

// TestSharedMemory: a pod with a limit of memory has half of it as /dev/shm, in memory.
func TestSharedMemory(t *testing.T) {
	for memory, want := range map[string]string{"": "", "64Mi": "64Mi", "3Gi": "1536Mi"} {
		spec := lifecycle.Spec{Image: "busybox", Entrypoint: []string{"sleep", "60"}, Resources: lifecycle.ResourceLimits{}}
		if memory != "" {
			spec.Resources["memory"] = memory
		}
		pod, err := (&Cluster{}).template(spec, lifecycle.RuntimeClass{}, "token", newSecret("id"))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, mount := range pod.Spec.Containers[0].VolumeMounts {
			for _, volume := range pod.Spec.Volumes {
				if mount.MountPath == "/dev/shm" && volume.Name == mount.Name && volume.EmptyDir.Medium == corev1.StorageMediumMemory {
					got = volume.EmptyDir.SizeLimit.String()
				}
			}
		}
		if got != want {
			t.Errorf("with %q of memory /dev/shm has %q, want %q", memory, got, want)
		}
	}
}

// TestRequests: a pod reserves what the client asks for, and as much as its limits of what it does
// not name.
func TestRequests(t *testing.T) {
	spec := lifecycle.Spec{
		Image: "busybox", Entrypoint: []string{"sleep", "60"},
		Resources: lifecycle.ResourceLimits{"cpu": "2", "memory": "1Gi"}, Requests: lifecycle.ResourceLimits{"cpu": "100m"},
	}
	pod, err := (&Cluster{}).template(spec, lifecycle.RuntimeClass{}, "token", newSecret("id"))
	if err != nil {
		t.Fatal(err)
	}
	for _, container := range []corev1.Container{pod.Spec.InitContainers[0], pod.Spec.Containers[0]} {
		r := container.Resources
		for name, got := range map[string]string{
			"100m": r.Requests.Cpu().String(), "2": r.Limits.Cpu().String(), "1Gi": r.Requests.Memory().String(), "1Gi ": r.Limits.Memory().String() + " ",
		} {
			if got != name {
				t.Errorf("%s has %s, want %s", container.Name, got, name)
			}
		}
	}
	spec.Resources["gpu"] = "all"
	if _, err := (&Cluster{}).template(spec, lifecycle.RuntimeClass{}, "token", newSecret("id")); err == nil {
		t.Error("all GPUs of a node that is not chosen yet are accepted")
	}
}

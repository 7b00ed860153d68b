# A coordinator, and a fleet of spot machines that join it, on Google Cloud.
#
#     terraform apply -var project=... -var deb=https://.../skerry_0.1.0_amd64.deb
#     gcloud compute ssh skerry-coordinator --command 'sudo cat /var/lib/skerry-coordinator/user.token' | skerry login -
#     export TF_VAR_token=$(skerry tokens --new worker --name fleet --expires 30d)
#     terraform apply -var project=... -var deb=... -var workers=4 -var worker_image=...
#
# A machine that is taken back is told so, which workerd --spot auto sees; the group starts another
# one, which joins anew: no --uses for the token, and an end behind that of the fleet, as those that
# come later are refused, and cost all the same.  The state of Terraform has the token: keep it where
# secrets are kept.
terraform {
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 7.0"
    }
  }
}

variable "project" {
  type = string
}

variable "region" {
  type    = string
  default = "us-central1"
}

variable "zone" {
  type        = string
  default     = "us-central1-a"
  description = "of the coordinator; workers are wherever the region has some"
}

variable "deb" {
  type        = string
  description = "where the package is, https; for cards one that was built with CUDA (docs/deploy.md)"
}

variable "coordinator_type" {
  type    = string
  default = "e2-small"
}

variable "workers" {
  type        = number
  default     = 0
  description = "spot machines at a time"
}

variable "worker_type" {
  type        = string
  default     = "g2-standard-4" # one L4
  description = "a type of machine that brings its cards"
}

variable "worker_image" {
  type        = string
  default     = "debian-cloud/debian-12"
  description = "an image of Debian 12, for cards with NVIDIA's driver, libcublas, libcudnn9 and libnccl2"
}

variable "token" {
  type        = string
  default     = "none"
  sensitive   = true
  description = "what workers join with, needed where there are some"
}

provider "google" {
  project = var.project
  region  = var.region
}

locals {
  # Google's images of Debian have no cloud-init: the first boot gets it, however
  # long it takes to reach the archive, and the second one obeys it.
  startup = "[ -e /usr/bin/cloud-init ] || { until apt-get update -q && apt-get install -yq cloud-init; do sleep 5; done; reboot; }"
}

resource "google_compute_firewall" "coordinator" {
  name          = "skerry-coordinator"
  network       = "default"
  source_ranges = ["0.0.0.0/0"]
  target_tags   = ["skerry-coordinator"]

  allow {
    protocol = "tcp"
    ports    = ["7710", "7711"]
  }
}

# Tokens carry the address, so it outlives the machine.
resource "google_compute_address" "coordinator" {
  name = "skerry-coordinator"
}

resource "google_compute_instance" "coordinator" {
  name         = "skerry-coordinator"
  zone         = var.zone
  machine_type = var.coordinator_type
  tags         = ["skerry-coordinator"]

  boot_disk {
    initialize_params {
      image = "debian-cloud/debian-12"
      size  = 100
    }
  }

  network_interface {
    network = "default"

    access_config {
      nat_ip = google_compute_address.coordinator.address
    }
  }

  metadata = {
    user-data = replace(replace(file("${path.module}/../../cloud-init/coordinator.yaml"),
    "DEB", var.deb), "HOST", google_compute_address.coordinator.address)
    startup-script = local.startup
  }

  # Jobs are on its disk: a newer image of Debian is no reason to make it anew.
  lifecycle {
    ignore_changes = [boot_disk, metadata]
  }
}

resource "google_compute_instance_template" "worker" {
  name_prefix  = "skerry-worker-"
  machine_type = var.worker_type

  disk {
    source_image = var.worker_image
    disk_size_gb = 120
    boot         = true
  }

  network_interface {
    network = "default"

    access_config {}
  }

  scheduling {
    provisioning_model          = "SPOT"
    preemptible                 = true
    automatic_restart           = false
    on_host_maintenance         = "TERMINATE"
    instance_termination_action = "DELETE"
  }

  metadata = {
    user-data = replace(replace(replace(file("${path.module}/../../cloud-init/worker.yaml"),
    "DEB", var.deb), "TOKEN", var.token), "WORKERD_FLAGS=\"\"", "WORKERD_FLAGS=\"--spot auto\"")
    startup-script = local.startup
  }

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = var.workers == 0 || var.token != "none"
      error_message = "workers need a token: export TF_VAR_token=$(skerry tokens --new worker --expires 30d)"
    }
  }
}

resource "google_compute_region_instance_group_manager" "workers" {
  name               = "skerry-workers"
  base_instance_name = "skerry-worker"
  target_size        = var.workers

  # Wherever there are such machines: an even spread would wait for zones that have none.
  distribution_policy_target_shape = "ANY"

  update_policy {
    type                         = "OPPORTUNISTIC"
    minimal_action               = "REPLACE"
    instance_redistribution_type = "NONE"
  }

  version {
    instance_template = google_compute_instance_template.worker.id
  }
}

output "address" {
  value = google_compute_address.coordinator.address
}
